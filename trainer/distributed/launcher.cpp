#include "trainer/distributed/launcher.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <vector>

#include "system/error.h"

namespace {

using Lookup = std::function<std::string(const std::string&)>;

struct Launcher {
    std::string name, rank, world_size, local_rank, local_size;
};
const Launcher open_mpi = {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
const Launcher mpich = {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
const Launcher torchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
const Launcher srun = {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                       "SLURM_STEP_TASKS_PER_NODE"};

// The innermost launcher; nullptr if there is none. mpirun and torchrun may run inside a SLURM step, but
// srun runs inside neither.
const Launcher* find_launcher(const Lookup& variable) {
    const auto any = [&](std::initializer_list<std::string> names) {
        for (const std::string& name : names) {
            if (!variable(name).empty()) return true;
        }
        return false;
    };
    // SLURM_PROCID, SLURM_LOCALID and SLURM_NTASKS are also set in a batch script, which srun did not
    // start.
    const bool step = any({"SLURM_STEP_ID", srun.world_size});
    if (any({open_mpi.rank, open_mpi.world_size, open_mpi.local_rank, open_mpi.local_size})) return &open_mpi;
    // srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE too.
    if (any({mpich.local_rank, mpich.local_size}) || (!step && any({mpich.rank, mpich.world_size})))
        return &mpich;
    if (any({torchrun.rank, torchrun.world_size, torchrun.local_rank, torchrun.local_size})) return &torchrun;
    return step ? &srun : nullptr;
}

std::string needed(const Lookup& variable, const Launcher& launcher, const std::string& name) {
    const std::string text = variable(name);
    CHECK(
        !text.empty(),
        "{}'s environment variables are incomplete: {} is missing; expected all of them, or none (start the "
        "program through {})",
        launcher.name, name, launcher.name);
    return text;
}

int number(const std::string& name, const std::string& text, int low, int high) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    CHECK(error == std::errc() && end == text.data() + text.size() && value >= low && value <= high,
          "{}={} in the environment; expected a number from {} to {}", name, text, low, high);
    return value;
}

// SLURM's number of tasks on each node: "4(x2),3" means 4, 4 and 3.
std::vector<int> tasks_per_node(const std::string& text) {
    std::vector<int> tasks;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        std::string count = text.substr(begin, end - begin);
        int nodes = 1;
        if (const size_t repeated = count.find("(x"); repeated != std::string::npos && count.ends_with(')')) {
            nodes =
                number(srun.local_size, count.substr(repeated + 2, count.size() - repeated - 3), 1, 1 << 20);
            count.resize(repeated);
        }
        tasks.insert(tasks.end(), static_cast<size_t>(nodes), number(srun.local_size, count, 1, 1 << 20));
        begin = end + 1;
    }
    return tasks;
}

// The first name in a SLURM node list: node07 in "node[07-09,12],login", rack0node00 in
// "rack[0-1]node[00-15]".
std::string first_node(const std::string& list) {
    std::string name;
    for (size_t i = 0; i < list.size() && list[i] != ','; i++) {
        if (list[i] != '[') {
            name += list[i];
            continue;
        }
        const size_t end = list.find(']', i);
        CHECK(end != std::string::npos && end > i + 1,
              "SLURM_STEP_NODELIST={} in the environment; expected names such as node[01-04,07]", list);
        name += list.substr(i + 1, std::min(list.find_first_of("-,]", i), end) - i - 1);
        i = end;
    }
    return name;
}

// A port that each process of a launch computes by itself and that concurrent launches rarely share. It
// is below the range of ephemeral ports.
int port_of(const std::string& launch) {
    return 20000 + static_cast<int>(XXH3_64bits(launch.data(), launch.size()) % 12000);
}

std::string address(const std::string& host, int port) {
    const bool ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
    return fmt::format(fmt::runtime(ipv6 ? "[{}]:{}" : "{}:{}"), host, port);
}

// The same text for all processes of a launch, and a different one for every other launch.
std::string launch_name(const Lookup& variable, const Launcher& launcher) {
    if (&launcher == &torchrun) return variable("MASTER_ADDR") + ":" + variable("MASTER_PORT");
    if (&launcher == &srun) return variable("SLURM_JOB_ID") + "." + variable("SLURM_STEP_ID");
    // These are set by Open MPI 4, by Open MPI 5 and other users of PMIx, and by MPICH.
    for (const char* name : {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID"}) {
        if (const std::string launch = variable(name); !launch.empty()) return launch;
    }
    return "";
}

std::string main_address(const Lookup& variable, const Launcher& launcher, const std::string& launch,
                         bool one_machine) {
    constexpr const char* loopback = "127.0.0.1";
    if (&launcher == &torchrun) {
        const std::string host = needed(variable, launcher, "MASTER_ADDR");
        // torchrun's agent itself listens on MASTER_PORT, so the next port is used.
        return address(host, number("MASTER_PORT", needed(variable, launcher, "MASTER_PORT"), 1, 65534) + 1);
    }
    if (&launcher == &srun) {
        std::string host = variable("MASTER_ADDR");
        if (host.empty())
            host = one_machine ? loopback : first_node(needed(variable, launcher, "SLURM_STEP_NODELIST"));
        const std::string port = variable("MASTER_PORT");
        if (!port.empty()) return address(host, number("MASTER_PORT", port, 1, 65535));
        needed(variable, launcher, "SLURM_JOB_ID");
        return address(host, port_of(launch));
    }
    return one_machine && !launch.empty() ? address(loopback, port_of(launch)) : "";
}

}  // namespace

Process process_from(const Lookup& variable) {
    Process process;
    const Launcher* const launcher = find_launcher(variable);
    if (launcher == nullptr) return process;
    const auto text = [&](const std::string& name) { return needed(variable, *launcher, name); };
    process.launcher = launcher->name;
    process.world_size = number(launcher->world_size, text(launcher->world_size), 1, 1 << 20);
    process.rank = number(launcher->rank, text(launcher->rank), 0, process.world_size - 1);
    if (launcher == &srun) {
        const std::vector<int> tasks = tasks_per_node(text(srun.local_size));
        const int node = tasks.size() == 1 ? 0
                                           : number("SLURM_NODEID", text("SLURM_NODEID"), 0,
                                                    static_cast<int>(tasks.size()) - 1);
        process.local_size = tasks[static_cast<size_t>(node)];
    } else {
        process.local_size = number(launcher->local_size, text(launcher->local_size), 1, 1 << 20);
    }
    CHECK(process.local_size <= process.world_size,
          "the environment says that {} of {} processes run on this machine ({} and {})", process.local_size,
          process.world_size, launcher->local_size, launcher->world_size);
    process.local_rank = number(launcher->local_rank, text(launcher->local_rank), 0, process.local_size - 1);
    if (process.world_size == 1) return process;
    process.launch = launch_name(variable, *launcher);
    process.main_address =
        main_address(variable, *launcher, process.launch, process.local_size == process.world_size);
    return process;
}

Process this_process() {
    return process_from([](const std::string& name) {
        const char* const value = std::getenv(name.c_str());
        return std::string(value == nullptr ? "" : value);
    });
}
