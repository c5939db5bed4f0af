// single_process.h: the communicator of a single process, which sends nothing.
#pragma once
#include "trainer/distributed/communicator.h"

class SingleProcess : public Communicator {
public:
    explicit SingleProcess(const Process& process = {}) : Communicator(process) {}
    Ticket begin(const Collective&, stream_t) override { return ++begun_; }
    void wait(Ticket, stream_t) override {}
    void abort_operations() override {}

protected:
    void end_others(int) override {}

private:
    Ticket begun_ = 0;  // tickets count from 1 here too; 0 means none in flight
};
