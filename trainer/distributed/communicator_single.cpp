// communicator_single.cpp: a build without MPI or NCCL. There is only one process, so collectives do
// nothing.
#include "system/error.h"
#include "trainer/distributed/communicator.h"
#include "trainer/distributed/single_process.h"

std::string communicator_library() { return "none: one process only"; }

std::unique_ptr<Communicator> make_communicator(const Process& process, double) {
    if (process.world_size > 1) {
        throw UsageError(fmt::format(
            "{} started {} processes, but this program was built without {}; expected one process, or a "
            "build with it",
            process.launcher, process.world_size, simt::is_gpu() ? "NCCL" : "MPI (libopenmpi-dev)"));
    }
    return std::make_unique<SingleProcess>(process);
}
