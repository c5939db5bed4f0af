// Preloaded into a process, this stops it for ever (SIGSTOP) when it calls MPI_Init_thread, when it calls
// MPI_Finalize, or when MPI_Finalize is over: STOP_AT=init, finalize or end. With FORBID_COPIES=1, copies
// from other processes are forbidden, as in a container.
#include <mpi.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
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
ssize_t process_vm_readv(pid_t process, const iovec* local, unsigned long local_count, const iovec* remote,
                         unsigned long remote_count, unsigned long flags) {
    if (std::getenv("FORBID_COPIES") != nullptr) {
        errno = EPERM;
        return -1;
    }
    return syscall(SYS_process_vm_readv, process, local, local_count, remote, remote_count, flags);
}
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
