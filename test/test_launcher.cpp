#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "system/error.h"
#include "temporary_folder.h"
#include "trainer/distributed/launcher.h"

namespace {

using Environment = std::map<std::string, std::string>;

Process process_in(const Environment& environment) {
    return process_from([&](const std::string& name) {
        const auto found = environment.find(name);
        return found == environment.end() ? "" : found->second;
    });
}

// Launcher, rank/world_size, local_rank/local_size.
std::string place_of(const Process& p) {
    return fmt::format("{} {}/{} {}/{}", p.launcher, p.rank, p.world_size, p.local_rank, p.local_size);
}

void expect_error(const Environment& environment, const std::string& part) {
    EXPECT_TRUE(says(message_of<UsageError>([&] { process_in(environment); }), part));
}

// `changes` on top of `environment`; an empty value removes a variable.
Environment with(Environment environment, const Environment& changes) {
    for (const auto& [name, value] : changes) environment[name] = value;
    return environment;
}

// The variables that Open MPI 4.1 was observed to set.
const Environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"OMPI_COMM_WORLD_NODE_RANK", "2"},  {"OMPI_MCA_ess_base_jobid", "1380253697"},
                              {"PMIX_NAMESPACE", "1380253697"},    {"PMIX_RANK", "2"}};
const Environment mpich = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Environment torchrun = {{"RANK", "5"},          {"WORLD_SIZE", "16"},
                              {"LOCAL_RANK", "5"},    {"LOCAL_WORLD_SIZE", "8"},
                              {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}};
// A batch script of 9 tasks on 3 nodes, and one of its steps.
const Environment batch = {{"SLURM_JOB_ID", "4711"},
                           {"SLURM_NTASKS", "9"},
                           {"SLURM_NNODES", "3"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_JOB_NODELIST", "node[007-008,012]"},
                           {"SLURM_TASKS_PER_NODE", "4(x2),1"}};
const Environment srun = with(batch, {{"SLURM_PROCID", "8"},
                                      {"SLURM_LOCALID", "0"},
                                      {"SLURM_NODEID", "2"},
                                      {"SLURM_STEP_ID", "0"},
                                      {"SLURM_STEP_NUM_TASKS", "9"},
                                      {"SLURM_STEP_TASKS_PER_NODE", "4(x2),1"},
                                      {"SLURM_STEP_NODELIST", "node[007-008,012]"},
                                      {"SLURM_LAUNCH_NODE_IPADDR", "192.0.2.7"}});

TEST(Launcher, NoneIsAProcessOfItsOwn) {
    const Process process = process_in({});
    EXPECT_EQ(process.launcher, "");
    EXPECT_EQ(process.world_size, 1);
    EXPECT_EQ(process.rank, 0);
    EXPECT_EQ(process.local_size, 1);
    EXPECT_EQ(process.main_address, "");
}

TEST(Launcher, OpenMpi) {
    const Process process = process_in(open_mpi);
    EXPECT_EQ(place_of(process), "mpirun 2/4 2/4");
    EXPECT_EQ(process.launch, "1380253697");
}

TEST(Launcher, AWorldOfOneUnderMpirunIsStillMpiruns) {
    const Process process = process_in({{"OMPI_COMM_WORLD_RANK", "0"},
                                        {"OMPI_COMM_WORLD_SIZE", "1"},
                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
    EXPECT_EQ(process.launcher, "mpirun");
    EXPECT_EQ(process.world_size, 1);
}

TEST(Launcher, Mpich) {
    const Process process = process_in(mpich);
    EXPECT_EQ(place_of(process), "mpirun 3/8 1/2");
}

TEST(Launcher, Torchrun) {
    const Process process = process_in(torchrun);
    EXPECT_EQ(place_of(process), "torchrun 5/16 5/8");
    EXPECT_EQ(process.main_address, "n01:29501");  // the agent listens on 29500
}

TEST(Launcher, Srun) {
    const Process process = process_in(srun);
    EXPECT_EQ(place_of(process), "srun 8/9 0/1");
    EXPECT_EQ(process_in(with(srun, {{"SLURM_PROCID", "7"}, {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "3"}}))
                  .local_size,
              4);
}

TEST(Launcher, ABatchScriptWithoutSrunIsNoProcessOfMany) {
    const Process process = process_in(batch);
    EXPECT_EQ(process.launcher, "");
    EXPECT_EQ(process.world_size, 1);
}

TEST(Launcher, MpirunAndTorchrunWinOverTheSlurmStepThatTheyRunIn) {
    EXPECT_EQ(process_in(with(srun, open_mpi)).launcher, "mpirun");
    EXPECT_EQ(process_in(with(srun, open_mpi)).world_size, 4);
    EXPECT_EQ(process_in(with(srun, mpich)).world_size, 8);
    EXPECT_EQ(process_in(with(srun, torchrun)).launcher, "torchrun");
    EXPECT_EQ(process_in(with(batch, open_mpi)).launcher, "mpirun");
}

TEST(Launcher, SrunWithPmi2IsNotTakenForMpirun) {
    const Process process = process_in(with(srun, {{"PMI_RANK", "8"}, {"PMI_SIZE", "9"}}));
    EXPECT_EQ(process.launcher, "srun");
    EXPECT_EQ(process.rank, 8);
}

TEST(Launcher, MpirunMeetsOnItsOwnMachineAtAPortOfItsOwn) {
    const std::string meeting = process_in(open_mpi).main_address;
    EXPECT_EQ(meeting.substr(0, 10), "127.0.0.1:");
    EXPECT_EQ(process_in(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "0"},
                                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                         {"PMIX_RANK", "0"}}))
                  .main_address,
              meeting);
    std::set<std::string> others;
    for (int job = 0; job < 20; job++)
        others.insert(
            process_in(with(open_mpi, {{"OMPI_MCA_ess_base_jobid", std::to_string(job)}})).main_address);
    EXPECT_GE(others.size(), 19u);  // 12000 ports: two of 20 jobs share one in one run of 60
    // Open MPI 5
    EXPECT_EQ(process_in(
                  with(open_mpi, {{"OMPI_MCA_ess_base_jobid", ""}, {"PMIX_NAMESPACE", "prterun-n01-1234@1"}}))
                  .main_address.substr(0, 10),
              "127.0.0.1:");
}

TEST(Launcher, MpirunOnSeveralMachinesNamesNoAddress) {
    EXPECT_EQ(
        process_in(with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}))
            .main_address,
        "");
    EXPECT_EQ(process_in(mpich).main_address, "");
}

TEST(Launcher, SrunMeetsAtTheFirstNodeOfTheStep) {
    // Not the node where srun was called (SLURM_LAUNCH_NODE_IPADDR), which may be a login node.
    const std::string meeting = process_in(srun).main_address;
    EXPECT_EQ(meeting.substr(0, 8), "node007:");
    const int port = std::stoi(meeting.substr(8));
    EXPECT_GE(port, 1024);
    EXPECT_LT(port, 32768);  // Linux gives the ports from 32768 on to any process
    EXPECT_EQ(process_in(with(srun, {{"SLURM_PROCID", "1"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "1"}}))
                  .main_address,
              meeting);
    EXPECT_NE(process_in(with(srun, {{"SLURM_STEP_ID", "1"}})).main_address, meeting);
    EXPECT_NE(process_in(with(srun, {{"SLURM_JOB_ID", "4712"}})).main_address, meeting);
    EXPECT_EQ(process_in(with(srun, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "12345"}})).main_address,
              "other:12345");
    const Environment one_node = {{"SLURM_STEP_TASKS_PER_NODE", "9"}, {"SLURM_STEP_NODELIST", "node007"}};
    EXPECT_EQ(process_in(with(srun, one_node)).main_address.substr(0, 10), "127.0.0.1:");
}

TEST(Launcher, NodeLists) {
    const auto first = [](const std::string& list) {
        const std::string meeting = process_in(with(srun, {{"SLURM_STEP_NODELIST", list}})).main_address;
        return meeting.substr(0, meeting.rfind(':'));
    };
    EXPECT_EQ(first("n1,n2,n3"), "n1");
    EXPECT_EQ(first("gpu-[12,14-20],cpu3"), "gpu-12");
    EXPECT_EQ(first("gpu[0099-0101]-ib"), "gpu0099-ib");
    EXPECT_EQ(first("rack[0-1]node[00-15]"), "rack0node00");
    EXPECT_EQ(first("a.example.org,b[1-2]"), "a.example.org");
    expect_error(with(srun, {{"SLURM_STEP_NODELIST", "node[01-02"}}), "SLURM_STEP_NODELIST=node[01-02");
    expect_error(with(srun, {{"SLURM_STEP_NODELIST", "node[]"}}), "SLURM_STEP_NODELIST=node[]");
}

TEST(Launcher, TasksPerNode) {
    const auto local_size = [](const std::string& tasks, int node) {
        return process_in(
                   with(srun, {{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", std::to_string(node)}}))
            .local_size;
    };
    EXPECT_EQ(local_size("5,3,1", 0), 5);
    EXPECT_EQ(local_size("5,3,1", 2), 1);
    EXPECT_EQ(local_size("2(x3),3", 2), 2);
    EXPECT_EQ(local_size("2(x3),3", 3), 3);
    expect_error(with(srun, {{"SLURM_NODEID", "3"}}), "SLURM_NODEID=3");
    for (const char* junk : {"4(x2", "4(x)", "(x2)", "4,", ",4", "4(x2)x,1", "-4", "4x", "4(x0)"})
        expect_error(with(srun, {{"SLURM_STEP_TASKS_PER_NODE", junk}}), "SLURM_STEP_TASKS_PER_NODE=");
}

TEST(Launcher, AnIpv6AddressIsBracketed) {
    EXPECT_EQ(process_in(with(torchrun, {{"MASTER_ADDR", "fd00::2"}})).main_address, "[fd00::2]:29501");
    EXPECT_EQ(process_in(with(torchrun, {{"MASTER_ADDR", "[fd00::2]"}})).main_address, "[fd00::2]:29501");
}

TEST(Launcher, ContradictionsAreUsageErrors) {
    for (const char* junk : {"4", "-1", "2x", " 2", "2 ", "two", "99999999999999", "0x1"})
        expect_error(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", junk}}),
                     fmt::format("OMPI_COMM_WORLD_RANK={} ", junk));
    for (const char* junk : {"0", "-4", "4.0", "1e9"})
        expect_error(with(open_mpi, {{"OMPI_COMM_WORLD_SIZE", junk}}),
                     fmt::format("OMPI_COMM_WORLD_SIZE={} ", junk));
    expect_error(with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}), "5 of 4 processes");
    expect_error(with(torchrun, {{"RANK", "16"}}),
                 "RANK=16 in the environment; expected a number from 0 to 15");
    expect_error(with(torchrun, {{"LOCAL_RANK", "8"}}),
                 "LOCAL_RANK=8 in the environment; expected a number from 0 to 7");
    expect_error(with(torchrun, {{"MASTER_PORT", "65535"}}), "MASTER_PORT=65535");
    expect_error(with(srun, {{"SLURM_LOCALID", "1"}}), "SLURM_LOCALID=1");
    expect_error(with(srun, {{"MASTER_PORT", "http"}}), "MASTER_PORT=http");
}

TEST(Launcher, APartOfALaunchersVariablesIsAUsageError) {
    const auto each = [](const Environment& environment, std::initializer_list<std::string> names) {
        for (const std::string& name : names)
            expect_error(with(environment, {{name, ""}}), name + " is missing");
    };
    each(open_mpi, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE"});
    each(mpich, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
    each(torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
    each(srun, {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
                "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID"});
}

}  // namespace
