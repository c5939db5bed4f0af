// rank_process.h: a process that looks like a rank of a launch: "cat" with torchrun's variables. It ends
// with this object.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "trainer/distributed/launcher.h"

inline std::map<std::string, std::string> variables_of_rank(int rank, int world_size, int local_size,
                                                            const std::string& address) {
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
        for (const auto& [name, value] : variables_of_rank(rank, world_size, world_size, address))
            entries.push_back(name + "=" + value);
        std::vector<char*> environment;
        for (std::string& entry : entries) environment.push_back(entry.data());
        environment.push_back(nullptr);
        int to[2], from[2];
        EXPECT_EQ(pipe2(to, O_CLOEXEC), 0);
        EXPECT_EQ(pipe2(from, O_CLOEXEC), 0);
        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_adddup2(&files, to[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&files, from[1], STDOUT_FILENO);
        char name[] = "cat";
        char* const arguments[] = {name, nullptr};
        EXPECT_EQ(posix_spawnp(&pid_, name, &files, nullptr, arguments, environment.data()), 0);
        posix_spawn_file_actions_destroy(&files);
        close(to[0]);
        close(from[1]);
        input_ = to[1];
        output_ = from[0];
        // Its environment appears in /proc some time after it was spawned, and while it loads it may wait
        // for the disk. Once it has copied a byte it is loaded and waits for the next.
        char byte = 'x';
        EXPECT_EQ(write(input_, &byte, 1), 1);
        EXPECT_EQ(read(output_, &byte, 1), 1);
    }
    ~RankProcess() { end(); }
    RankProcess(const RankProcess&) = delete;
    RankProcess& operator=(const RankProcess&) = delete;

    pid_t pid() const { return pid_; }
    void stop() { strike(SIGSTOP, WSTOPPED); }
    // It remains a zombie.
    void kill() { strike(SIGKILL, WEXITED); }
    void end() {
        if (pid_ == 0) return;
        kill();
        waitpid(pid_, nullptr, 0);
        close(input_);
        close(output_);
        pid_ = 0;
    }

private:
    void strike(int signal, int event) {
        siginfo_t info;
        ::kill(pid_, signal);
        waitid(P_PID, static_cast<id_t>(pid_), &info, event | WNOWAIT);
    }
    pid_t pid_ = 0;
    int input_ = -1, output_ = -1;
};
