// train_gpt2 under launchers that cannot start it. How it runs under mpirun is in test_distributed.py.
#include <gtest/gtest.h>

#include <algorithm>

#include "program.h"
#include "trainer/distributed/communicator.h"

namespace {

const std::string small =
    "--steps 5 --total-batch 768 --seq-len 32 --layers 1 --heads 2 --channels 32 --val-every 0 "
    "--sample-every 0 --checkpoint-every 0";

std::string torchrun_variables(int rank, int world_size) {
    return fmt::format(
        "export RANK={0} LOCAL_RANK={0} WORLD_SIZE={1} LOCAL_WORLD_SIZE={1} MASTER_ADDR=127.0.0.1 "
        "MASTER_PORT=29500; cd /",
        rank, world_size);
}

class LaunchProgram : public testing::Test {
protected:
    void SetUp() override {
        if (!communicator_library().starts_with("MPI"))
            GTEST_SKIP() << "this build is without MPI, whose launchers these tests use";
    }
};

TEST_F(LaunchProgram, TorchrunOnCpusIsToldToBeMpirun) {
    for (const int rank : {0, 1}) {
        EXPECT_EQ(
            refusal_of(run_program(TRAIN_PROGRAM, small + " --batch-size 4", torchrun_variables(rank, 2))),
            fmt::format("train_gpt2: rank {}: torchrun started 2 processes, which on "
                        "CPUs communicate over MPI; expected mpirun -np 2\n",
                        rank));
    }
    const TemporaryFolder folder;
    EXPECT_TRUE(succeeded(run_program(TRAIN_PROGRAM, small + " --batch-size 12 --out " + folder / "one",
                                      torchrun_variables(0, 1))));
}

TEST_F(LaunchProgram, SrunWithoutPmixIsToldToBeAnother) {
    const std::string step =
        "export SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_ID=0 "
        "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2; cd /";
    EXPECT_EQ(refusal_of(run_program(TRAIN_PROGRAM, small + " --batch-size 4", step)),
              "train_gpt2: rank 0: srun started 2 processes that MPI cannot connect; expected srun "
              "--mpi=pmix, or mpirun -np 2\n");
}

TEST_F(LaunchProgram, AnEnvironmentThatContradictsItselfIsOneLine) {
    EXPECT_EQ(refusal_of(run_program(TRAIN_PROGRAM, small, torchrun_variables(2, 2))),
              "train_gpt2: RANK=2 in the environment; expected a number from 0 to 1\n");
    EXPECT_TRUE(
        is_refused(run_program(TRAIN_PROGRAM, small, "export RANK=0; cd /"), {"WORLD_SIZE is missing"}));
}

// An mpirun of another MPI than the program's: its variables contradict MPI.
TEST_F(LaunchProgram, WhatMpirunAndMpiSayDifferentlyIsOneLine) {
    const ProgramResult result = run_program(
        PROJECT_ROOT "/test/mpi/mpirun.sh",
        fmt::format("-np 2 env OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3 '{}' --batch-size 1",
                    TRAIN_PROGRAM));
    EXPECT_NE(result.exit_code, 0);
    EXPECT_TRUE(says(result.errors, "train_gpt2: rank 0: MPI says process 0 of 2, but mpirun says 0 of 3"));
}

TEST(LaunchProgramWithoutMpi, SaysWhatIsMissingWhenMoreThanOneProcessStarts) {
    if (communicator_library().starts_with("MPI")) GTEST_SKIP() << "a build with MPI";
    const auto of = [](int count) {
        return fmt::format(
            "export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE={0} "
            "OMPI_COMM_WORLD_LOCAL_SIZE={0}; cd /",
            count);
    };
    const TemporaryFolder folder;
    const std::string options = fmt::format("{} --batch-size 4 --out '{}'", small, folder / "run");
    EXPECT_EQ(refusal_of(run_program(TRAIN_PROGRAM, options, of(2))),
              "train_gpt2: rank 0: mpirun started 2 processes, but this program was built without MPI "
              "(libopenmpi-dev); expected one process, or a "
              "build with it\n");
    EXPECT_TRUE(succeeded(run_program(TRAIN_PROGRAM, options, of(1))));
}

}  // namespace
