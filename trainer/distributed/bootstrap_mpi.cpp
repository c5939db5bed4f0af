#include <mpi.h>

#include "system/error.h"
#include "trainer/distributed/bootstrap.h"
#include "trainer/distributed/mpi_environment.h"

bool broadcast_by_mpi(const Process& process, void* bytes, size_t size) {
    use_permitted_copies();
    MPI_Init(nullptr, nullptr);
    int processes = 0, rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (processes == process.world_size && rank == process.rank)
        MPI_Bcast(bytes, static_cast<int>(size), MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    if (processes != process.world_size || rank != process.rank)
        throw Error(
            fmt::format("MPI says process {} of {}, but {} says {} of {}; does mpirun belong to another MPI?",
                        rank, processes, process.launcher, process.rank, process.world_size));
    return true;
}
