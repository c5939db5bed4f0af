// launcher.h: the rank of this process among those that train together, read from the launcher's
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
    int local_rank = 0, local_size = 1;  // among the processes on the same machine
    std::string launcher;                // "mpirun", "torchrun", "srun"; empty: started without a launcher
    // Identifies the launch, equal in all its processes; empty if the launcher gives no name.
    std::string launch;
    // host:port at which the processes can meet without MPI; empty if the launcher gives none.
    std::string main_address;
};

// Reads the environment. UsageError if the variables of a launcher are incomplete or contradict each
// other.
Process this_process();

// The same for any lookup of variables; "" means that a variable is absent.
Process process_from(const std::function<std::string(const std::string& name)>& variable);
