// run_together.h: main() of a program that may run as several processes.
#pragma once
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>

#include "system/run_main.h"
#include "trainer/distributed/communicator.h"
#include "trainer/distributed/local_ranks.h"

// Runs body(process, communicator), which creates the communicator once it has the time limit. An
// exception is reported as by run_main, with the rank, and ends all other processes, since they may be
// waiting for this one. Returns main's exit code.
template <class Body>
int run_together(const std::string& program, const Body& body) {
    set_limits_of_files();
    Process process;
    std::unique_ptr<Communicator> communicator;
    try {
        process = this_process();
        body(process, communicator);
        if (!communicator) check_same_arguments(process);  // such as after --help
        // The others wait for this process to leave them, and name it if it does not.
        else if (process.world_size > 1) end_within(communicator->time_limit() + 15);
        return 0;
    } catch (const std::exception& error) {
        if (process.world_size == 1) return report(program, error);
        if (process.rank > 0) {
            // An error that all processes have, such as a missing file, is reported by rank 0, which then
            // ends the others before they report it too.
            std::signal(SIGTERM, SIG_DFL);
            std::this_thread::sleep_for(std::chrono::seconds(3));
        }
        const int exit_code = report(fmt::format("{}: rank {}", program, process.rank), error);
        if (communicator) communicator->abort(exit_code);
        return exit_code;
    }
}
