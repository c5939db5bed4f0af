#include "trainer/distributed/local_ranks.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "system/error.h"
#include "system/print_line.h"
#include "system/printable.h"

namespace {

namespace fs = std::filesystem;

struct LocalRank {
    int rank;
    bool stopped;
    fs::path program;
    std::string arguments;  // each ends with a zero
};

// "" if the file does not exist or belongs to another user.
std::string content(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
}

// The rank as which the process in this folder of /proc was started, if it belongs to the launch. A process
// that has ended has no environment.
std::optional<int> rank_in(const Process& launch, const std::string& folder) {
    const std::string environment = '\0' + content(folder + "/environ");
    const auto variable = [&](const std::string& name) {
        const size_t found = environment.find('\0' + name + '=');
        return found == std::string::npos ? "" : std::string(&environment[found + name.size() + 2]);
    };
    try {
        const Process other = process_from(variable);
        const bool same = other.launcher == launch.launcher && other.launch == launch.launch &&
                          other.world_size == launch.world_size;
        if (same && !launch.launch.empty()) return other.rank;
    } catch (const Error&) {}  // a part of a launcher's variables
    return std::nullopt;
}

// The other processes of this launch on this machine. A script that runs the program is one of them too.
std::vector<LocalRank> local_ranks(const Process& process) {
    std::vector<LocalRank> found;
    std::error_code error;
    for (fs::directory_iterator i("/proc", error), end; i != end; i.increment(error)) {
        const std::string folder = i->path().string();
        const std::optional<int> rank = rank_in(process, folder);
        if (!rank || *rank == process.rank) continue;
        const std::string status = content(folder + "/status");
        const bool stopped = status.find("\nState:\tT") != std::string::npos ||
                             status.find("\nState:\tt") != std::string::npos;
        std::error_code hidden;
        found.push_back(
            {*rank, stopped, fs::read_symlink(folder + "/exe", hidden), content(folder + "/cmdline")});
    }
    return found;
}

}  // namespace

std::string idle_ranks(const Process& process) {
    std::set<int> seen, stopped;
    for (const LocalRank& other : local_ranks(process)) {
        seen.insert(other.rank);
        if (other.stopped) stopped.insert(other.rank);
    }
    // With several machines, a rank that is not seen may run on another one.
    const bool all_here = process.local_size == process.world_size && !process.launch.empty();
    std::string list;
    for (int rank = 0; rank < process.world_size; rank++) {
        if (rank == process.rank || (seen.contains(rank) ? !stopped.contains(rank) : !all_here)) continue;
        list += fmt::format("{}rank {} {}", list.empty() ? "" : ", ", rank,
                            seen.contains(rank) ? "is stopped" : "does not run on this machine");
    }
    return list;
}

void end_process(const Process& process, const std::string& message) {
    print_line(stderr, printable(fmt::format("{}: rank {}: {}", program_invocation_short_name, process.rank,
                                             message)));
    std::_Exit(1);
}

void give_up(const Process& process, const std::string& message) {
    const std::string idle = idle_ranks(process);
    // All ranks give up at the same time. A rank that can name the cause must print first; the launcher
    // then ends the others.
    const bool others_know = idle.empty() && process.local_size < process.world_size;
    std::signal(SIGTERM, SIG_DFL);
    std::this_thread::sleep_for(
        std::chrono::seconds((others_know ? 3 : 0) + (process.local_rank > 0 ? 3 : 0)));
    end_process(process, message + (idle.empty() ? "" : "; ") + idle);
}

void end_within(double seconds) {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    timer_t timer{};
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(seconds) + 1;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) timer_settime(timer, 0, &when, nullptr);
}

void check_same_arguments(const Process& process) {
    if (process.launch.empty() || rank_in(process, fmt::format("/proc/{}", getppid()))) return;
    const std::string own = content("/proc/self/cmdline");
    std::error_code hidden;
    const fs::path program = fs::read_symlink("/proc/self/exe", hidden);
    std::set<int> same;
    // Some ranks may not have started yet, others may have ended already.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (static_cast<int>(same.size()) < process.local_size - 1 && std::chrono::steady_clock::now() < end) {
        for (const LocalRank& other : local_ranks(process)) {
            if (other.program != program) continue;
            CHECK(
                other.arguments == own,
                "this process only prints a text and exits, but rank {} has other options and would wait for "
                "it; expected the same options "
                "for all processes",
                other.rank);
            same.insert(other.rank);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}
