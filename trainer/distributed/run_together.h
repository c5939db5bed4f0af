// run_together.h: main of a program that several processes may run as one.
#pragma once
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "system/run_main.h"
#include "trainer/distributed/communicator.h"
#include "trainer/distributed/local_ranks.h"

// Runs body(process, communicator), which makes the communicator when it knows with which time limit. An
// exception is reported as run_main does, with the rank, and ends all other processes: they may be waiting
// for this one. Returns main's exit code.
template <class Body>
int run_together(const std::string& program, const Body& body) {
    ignore_limits_of_files();
    Process process;
    std::unique_ptr<Communicator> communicator;
    try {
        process = this_process();
        body(process, communicator);
        if (!communicator) check_same_arguments(process);  // as after --help
        return 0;
    } catch (const std::exception& error) {
        if (process.world_size == 1) return report(program, error);
        if (process.rank > 0) {
            // What all processes meet, such as a missing file, rank 0 says, and it ends the others before
            // they say it too.
            std::signal(SIGTERM, SIG_DFL);
            std::this_thread::sleep_for(std::chrono::seconds(3));
        }
        const int exit_code = report(fmt::format("{}: rank {}", program, process.rank), error);
        if (communicator) communicator->abort(exit_code);
        return exit_code;
    }
}
