// rank_process.h: a process that looks like a rank of a launch: "sleep" with the variables of torchrun. It ends with
//   this object.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <map>
#include <string>
#include <vector>

#include "launcher.h"

inline std::map<std::string, std::string> variables_of_rank(int rank, int world_size, int local_size, const std::string& address) {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", std::to_string(world_size)},
            {"LOCAL_RANK", std::to_string(rank)},
            {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
            {"MASTER_ADDR", address},
            {"MASTER_PORT", "1234"}};
}

class RankProcess {
public:
    RankProcess(int rank, int world_size, const std::string& address) {
        std::vector<std::string> entries;
        for (const auto& [name, value] : variables_of_rank(rank, world_size, world_size, address)) entries.push_back(name + "=" + value);
        std::vector<char*> environment;
        for (std::string& entry : entries) environment.push_back(entry.data());
        environment.push_back(nullptr);
        char name[] = "sleep", seconds[] = "600";
        char* const arguments[] = {name, seconds, nullptr};
        EXPECT_EQ(posix_spawnp(&pid_, name, nullptr, nullptr, arguments, environment.data()), 0);  // returns when sleep has been loaded
    }
    ~RankProcess() { end(); }
    RankProcess(const RankProcess&) = delete;
    RankProcess& operator=(const RankProcess&) = delete;

    pid_t pid() const { return pid_; }
    void stop() { strike(SIGSTOP, WSTOPPED); }
    // It stays as a zombie.
    void kill() { strike(SIGKILL, WEXITED); }
    void end() {
        if (pid_ == 0) return;
        kill();
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }

private:
    void strike(int signal, int event) {
        siginfo_t info;
        ::kill(pid_, signal);
        waitid(P_PID, static_cast<id_t>(pid_), &info, event | WNOWAIT);
    }
    pid_t pid_ = 0;
};
