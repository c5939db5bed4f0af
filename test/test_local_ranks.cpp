// local_ranks() finds the other ranks of a launch on this machine and reports which are idle. The ranks
// are simulated.
#include <algorithm>

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

TEST(LocalRanks, AreThoseOfTheSameLaunch) {
    EXPECT_TRUE(local_ranks(process_of(0, 4, 4)).empty());
    const RankProcess first(1, 4, address()), third(3, 4, address()), other_launch(2, 4, "another"),
        other_size(2, 3, address());
    std::vector<LocalRank> found = local_ranks(process_of(0, 4, 4));
    std::sort(found.begin(), found.end(),
              [](const LocalRank& a, const LocalRank& b) { return a.rank < b.rank; });
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(std::pair(found[0].rank, found[0].pid), std::pair(1, first.pid()));
    EXPECT_EQ(std::pair(found[1].rank, found[1].pid), std::pair(3, third.pid()));
    EXPECT_EQ(found[1].arguments, std::string("cat\0", 4));
    EXPECT_FALSE(found[1].same_program || found[1].stopped() || found[1].leaving);
    EXPECT_EQ(local_ranks(process_of(1, 4, 4)).size(), 1u);  // a rank is not one of its own others
}

TEST(LocalRanks, ThatAreStoppedOrGoneAreNamed) {
    RankProcess first(1, 4, address()), second(2, 4, address());
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
}

TEST(LocalRanks, AreUnknownIfTheLauncherNamesNoLaunch) {
    Process process = process_of(0, 4, 4);
    const RankProcess first(1, 4, address());
    process.launch = "";
    EXPECT_TRUE(local_ranks(process).empty());
    EXPECT_EQ(idle_ranks(process), "");
}

}  // namespace
