// bootstrap.h: how the processes of the GPU build find each other: they agree on NCCL's id of their
// communicator, and NCCL does the rest.
//   The id travels through MPI where mpirun is the launcher and the build has MPI. Elsewhere each process
//   makes it from the address that the launcher says (Process::main_address): NCCL_COMM_ID, at which the NCCL
//   of rank 0 listens.
#pragma once
#include <nccl.h>

#include <cstddef>

#include "trainer/distributed/launcher.h"

// The same in every process. Error in one line if there is no way to meet, or the processes' versions of NCCL
// differ.
ncclUniqueId unique_id(const Process& process);

// "2.28.9"
std::string nccl_version(int version);

// Seam (bootstrap_mpi.cpp, or bootstrap_no_mpi.cpp in a build without MPI): copies rank 0's bytes to all.
// MPI lives during the call only. False, with nothing done, in a build without MPI.
bool broadcast_by_mpi(const Process& process, void* bytes, size_t size);
