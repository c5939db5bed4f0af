// launcher.h: which of the processes that train together this one is, as its launcher says in the
// environment.
//   mpirun    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; MPICH and Intel MPI: PMI_RANK, PMI_SIZE,
//             MPI_LOCALRANKID, MPI_LOCALNRANKS
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID,
//             SLURM_STEP_NODELIST
#pragma once
#include <functional>
#include <string>

struct Process {
    int rank = 0, world_size = 1;
    int local_rank = 0, local_size = 1;  // among those on the same machine
    std::string launcher;                // "mpirun", "torchrun", "srun"; empty: none, a process of its own
    // names the launch, the same in all its processes; empty: the launcher does not say
    std::string launch;
    // host:port at which the processes may meet without MPI; empty: the launcher does not say
    std::string main_address;
};

// UsageError if the variables of a launcher contradict each other.
Process this_process();

// The same from any lookup of variables; "" is an absent one.
Process process_from(const std::function<std::string(const std::string& name)>& variable);
