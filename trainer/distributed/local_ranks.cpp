#include "trainer/distributed/local_ranks.h"

#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "system/error.h"
#include "system/print_line.h"
#include "system/printable.h"

namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr const char* name_of_leaving = "leaving";  // the process name, as in ps and /proc/PID/stat

// "" if the file does not exist or belongs to another user.
std::string content(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
}

// The environment with which a process was started.
std::map<std::string, std::string> environment_of(const std::string& folder) {
    std::map<std::string, std::string> variables;
    std::istringstream entries(content(folder + "/environ"));
    for (std::string entry; std::getline(entries, entry, '\0');) {
        if (const size_t equals = entry.find('='); equals != std::string::npos)
            variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
    return variables;
}

std::optional<Process> process_with(const std::map<std::string, std::string>& environment) {
    try {
        return process_from([&](const std::string& name) {
            const auto found = environment.find(name);
            return found == environment.end() ? std::string() : found->second;
        });
    } catch (const Error&) { return std::nullopt; }
}

// Reads state and name again. The line is "PID (name) state ...", and the name may contain any character.
void look_again(LocalRank& other) {
    const std::string stat = content("/proc/" + std::to_string(other.pid) + "/stat");
    const size_t begin = stat.find('('), end = stat.rfind(')');
    other.state = 0;
    if (end == std::string::npos || end + 2 >= stat.size()) return;
    if (stat[end + 2] != 'Z' && stat[end + 2] != 'X') other.state = stat[end + 2];
    other.leaving = stat.substr(begin + 1, end - begin - 1) == name_of_leaving;
}

bool same_launch(const Process& a, const Process& b) {
    return a.launcher == b.launcher && a.launch == b.launch && a.world_size == b.world_size;
}

}  // namespace

std::vector<LocalRank> local_ranks(const Process& process) {
    std::vector<LocalRank> found;
    if (process.launch.empty()) return found;
    std::error_code error;
    const fs::path own_program = fs::read_symlink("/proc/self/exe", error);
    for (fs::directory_iterator i("/proc", error), end; i != end; i.increment(error)) {
        const std::string folder = i->path().string(), name = i->path().filename().string();
        int pid = 0;
        if (std::from_chars(name.data(), name.data() + name.size(), pid).ptr != name.data() + name.size())
            continue;
        const std::optional<Process> other = process_with(environment_of(folder));
        if (!other || !same_launch(*other, process) || other->rank == process.rank) continue;
        std::error_code hidden;
        const bool same_program = fs::read_symlink(folder + "/exe", hidden) == own_program;
        LocalRank rank{other->rank, pid, same_program, content(folder + "/cmdline")};
        look_again(rank);
        if (rank.state != 0) found.push_back(std::move(rank));
    }
    return found;
}

std::string idle_ranks(const Process& process) {
    if (process.launch.empty()) return "";
    std::map<int, std::string> texts;  // by rank
    if (process.local_size == process.world_size) {
        for (int rank = 0; rank < process.world_size; rank++) texts[rank] = "does not run on this machine";
    }
    texts.erase(process.rank);
    for (const LocalRank& other : local_ranks(process)) {
        std::string& text = texts[other.rank];
        if (other.stopped()) text = "is stopped";
        else if (other.state == 'D' && text != "is stopped") text = "waits for a disk or a network folder";
        else if (text == "does not run on this machine") text = "";
    }
    std::string list;
    for (const auto& [rank, text] : texts) {
        if (!text.empty()) list += fmt::format("{}rank {} {}", list.empty() ? "" : ", ", rank, text);
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

void check_same_arguments(const Process& process) {
    if (process.launch.empty()) return;
    const std::optional<Process> parent = process_with(environment_of("/proc/" + std::to_string(getppid())));
    if (parent && same_launch(*parent, process)) return;
    const std::string own = content("/proc/self/cmdline");
    std::set<int> same;
    // Some ranks may not have started yet, others may have ended already.
    const auto end = Clock::now() + std::chrono::seconds(2);
    while (static_cast<int>(same.size()) < process.local_size - 1 && Clock::now() < end) {
        for (const LocalRank& other : local_ranks(process)) {
            if (!other.same_program) continue;
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

void leave_together(const Process& process, double time_limit) {
    std::vector<LocalRank> others = local_ranks(process);
    std::erase_if(others, [](const LocalRank& other) { return !other.same_program; });
    prctl(PR_SET_NAME, name_of_leaving);
    LocalRank own{process.rank, getpid(), true, ""};
    look_again(own);
    if (!own.leaving) return;  // /proc does not show the name, so other ranks could not see it either
    const auto needs_watching = [&](LocalRank& other) {
        look_again(other);
        return other.state != 0 && (process.local_rank == 0 || !other.leaving || other.stopped());
    };
    const auto end = Clock::now() + std::chrono::duration<double>(time_limit);
    while (std::any_of(others.begin(), others.end(), needs_watching)) {
        if (Clock::now() > end)
            give_up(process, fmt::format("the other processes have not ended for {:g} s (--comm-timeout)",
                                         time_limit));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}
