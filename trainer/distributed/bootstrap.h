// bootstrap.h: how the processes of the GPU build meet. They agree on the NCCL id of their communicator;
// NCCL does the rest.
//   If mpirun is the launcher and the build has MPI, the id is broadcast by MPI. Otherwise each process
//   derives it from the launcher's address (Process::main_address) through NCCL_COMM_ID; rank 0's NCCL
//   listens at that address.
#pragma once
#include <nccl.h>

#include <cstddef>

#include "trainer/distributed/launcher.h"

// The NCCL id, the same in every process. Error in one line if there is no way to meet, or if the
// processes have different versions of NCCL.
ncclUniqueId unique_id(const Process& process);

// "2.28.9"
std::string nccl_version(int version);

// Copies rank 0's bytes to all processes; MPI is initialised and finalised within the call. Seam:
// bootstrap_mpi.cpp, or bootstrap_no_mpi.cpp in a build without MPI, which does nothing and returns
// false.
bool broadcast_by_mpi(const Process& process, void* bytes, size_t size);
