// processes.h: tests that mpirun starts as several processes. All run the same tests, and a test fails if
// one process does. Checks are EXPECT_*: an ASSERT that ends the test in one process would leave the
// others waiting for it.
#pragma once
#include "../common.cuh"
#include "trainer/distributed/communicator.h"
#include "trainer/distributed/single_process.h"

// This test's communicator: made once, by main.
Communicator& communicator();

// Forwards everything to another communicator, and counts it.
class CountingCommunicator : public Communicator {
public:
    explicit CountingCommunicator(Communicator& inner) : Communicator(inner.process()), inner_(inner) {}
    Ticket begin(const Collective& collective, stream_t stream) override {
        begun.push_back(collective);
        return inner_.begin(collective, stream);
    }
    void wait(Ticket ticket, stream_t stream) override { inner_.wait(ticket, stream); }
    void abort_operations() override { inner_.abort_operations(); }

    size_t bytes_sent() const {
        size_t bytes = 0;
        for (const Collective& collective : begun) bytes += collective.bytes_sent(size());
        return bytes;
    }
    std::vector<Collective> begun;

protected:
    void end_others(int exit_code) override { inner_.abort(exit_code); }

private:
    Communicator& inner_;
};
