// Preloaded into a process, this stops it for ever (SIGSTOP) when it calls MPI_Init_thread, when it calls
// MPI_Finalize, or when MPI_Finalize is over: STOP_AT=init, finalize or end.
#include <mpi.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

namespace {

void stop_at(std::string_view place) {
    const char* const wanted = std::getenv("STOP_AT");
    if (wanted != nullptr && place == wanted) std::raise(SIGSTOP);
}

}  // namespace

extern "C" {
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
    stop_at("init");
    return PMPI_Init_thread(argc, argv, required, provided);
}
int MPI_Finalize() {
    stop_at("finalize");
    const int result = PMPI_Finalize();
    stop_at("end");
    return result;
}
}
