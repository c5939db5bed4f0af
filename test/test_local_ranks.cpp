// idle_ranks() names the ranks of a launch on this machine that are stopped or gone; end_within() ends even a
// stopped process. The ranks are simulated.
#include "rank_process.h"
#include "trainer/distributed/local_ranks.h"

namespace {

// An address that no launch uses.
std::string address() { return "test" + std::to_string(getpid()); }

Process process_of(int rank, int world_size, int local_size) {
    const auto variables = variables_of_rank(rank, world_size, local_size, address());
    return process_from([&](const std::string& name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::string() : found->second;
    });
}

TEST(LocalRanks, ThatAreStoppedOrGoneAreNamed) {
    RankProcess first(1, 4, address()), second(2, 4, address());
    const RankProcess other_launch(3, 4, "another"), other_size(2, 3, address());
    EXPECT_EQ(idle_ranks(process_of(0, 4, 4)), "rank 3 does not run on this machine");
    first.stop();
    second.kill();
    EXPECT_EQ(idle_ranks(process_of(0, 4, 4)),
              "rank 1 is stopped, rank 2 does not run on this machine, rank 3 does not run on this machine");
    second.end();
    EXPECT_EQ(idle_ranks(process_of(0, 4, 4)),
              "rank 1 is stopped, rank 2 does not run on this machine, rank 3 does not run on this machine");
    // With several machines, a missing rank may run on another one.
    EXPECT_EQ(idle_ranks(process_of(0, 4, 3)), "rank 1 is stopped");
    // A rank is not one of its own others.
    EXPECT_EQ(idle_ranks(process_of(1, 4, 3)), "");
}

TEST(LocalRanks, AreUnknownIfTheLauncherNamesNoLaunch) {
    Process process = process_of(0, 4, 4);
    const RankProcess first(1, 4, address());
    process.launch = "";
    EXPECT_EQ(idle_ranks(process), "");
}

TEST(LocalRanks, AStoppedProcessEnds) {
    const pid_t child = fork();
    if (child == 0) {
        end_within(0.5);
        raise(SIGSTOP);
        _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

}  // namespace
