// bootstrap.cpp with the real NCCL, without a GPU: the id, without MPI, of processes that have an address.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "system/error.h"
#include "trainer/distributed/bootstrap.h"

namespace {

// The id or the error, in a process of its own, because NCCL reads its environment only once.
std::string id_in(const Process& process) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        std::string text;
        try {
            const ncclUniqueId id = unique_id(process);
            text.assign(id.internal, sizeof(id.internal));
        } catch (const Error& error) { text = error.what(); }
        const ssize_t written = write(ends[1], text.data(), text.size());
        _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    close(ends[1]);
    std::string text;
    char part[512];
    for (ssize_t n; (n = read(ends[0], part, sizeof(part))) > 0;) text.append(part, static_cast<size_t>(n));
    close(ends[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return text;
}

Process rank(int rank, int local_size, const std::string& launcher, const std::string& address) {
    return {.rank = rank,
            .world_size = 2,
            .local_rank = rank % local_size,
            .local_size = local_size,
            .launcher = launcher,
            .launch = "",
            .main_address = address};
}

class Bootstrap : public testing::Test {
protected:
    void SetUp() override { unsetenv("NCCL_COMM_ID"); }
};

TEST_F(Bootstrap, TheAddressGivesEveryProcessTheSameId) {
    for (const char* launcher : {"torchrun", "srun", "mpirun"}) {
        const std::string first = id_in(rank(0, 2, launcher, "127.0.0.1:29501"));
        EXPECT_EQ(first.size(), size_t{NCCL_UNIQUE_ID_BYTES}) << first;
        EXPECT_EQ(id_in(rank(1, 2, launcher, "127.0.0.1:29501")), first);
        EXPECT_EQ(id_in(rank(1, 2, launcher, "localhost:29501")), first);
        EXPECT_NE(id_in(rank(1, 2, launcher, "127.0.0.1:29502")), first);
    }
}

TEST_F(Bootstrap, AnAddressThatTheUserGaveStays) {
    const std::string from_launcher = id_in(rank(0, 2, "torchrun", "127.0.0.1:29501"));
    setenv("NCCL_COMM_ID", "127.0.0.1:29501", 1);
    EXPECT_EQ(id_in(rank(1, 2, "torchrun", "127.0.0.1:12345")), from_launcher);
    EXPECT_EQ(id_in(rank(1, 1, "mpirun", "")), from_launcher);
}

TEST_F(Bootstrap, AProcessAloneMeetsNobody) {
    const std::string id = id_in({.rank = 0,
                                  .world_size = 1,
                                  .local_rank = 0,
                                  .local_size = 1,
                                  .launcher = "mpirun",
                                  .launch = "",
                                  .main_address = ""});
    EXPECT_EQ(id.size(), size_t{NCCL_UNIQUE_ID_BYTES}) << id;
}

TEST_F(Bootstrap, MpirunOnSeveralMachinesNeedsMpi) {
    EXPECT_EQ(id_in(rank(1, 1, "mpirun", "")),
              "mpirun started 2 processes on several machines and gives no address at which they can meet; "
              "expected a "
              "build with MPI (libopenmpi-dev), or "
              "torchrun or srun as the launcher");
}

TEST_F(Bootstrap, AnAddressThatOnlyItsOwnMachineReachesIsRefusedForSeveral) {
    EXPECT_EQ(id_in(rank(0, 1, "torchrun", "localhost:29501")),
              "localhost is 127.0.0.1 on its own machine (see /etc/hosts), where no other machine reaches "
              "it; expected MASTER_ADDR to be its address "
              "in the network");
}

TEST_F(Bootstrap, AnAddressThatIsNoneIsNamed) {
    const std::string error = id_in(rank(0, 2, "torchrun", "[fd00:5"));
    EXPECT_EQ(error.substr(0, 47), "NCCL cannot connect the processes at [fd00:5: I") << error;
}

}  // namespace
