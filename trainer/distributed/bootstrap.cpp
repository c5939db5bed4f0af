#include "trainer/distributed/bootstrap.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <cstdlib>

#include "system/error.h"

namespace {

ncclUniqueId new_id(const std::string& address) {
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess)
        throw Error(fmt::format("NCCL cannot connect the processes{}{}: {}", address.empty() ? "" : " at ",
                                address, ncclGetLastError(nullptr)));
    return id;
}

// UsageError if `address` is a loopback address on rank 0's machine, where NCCL listens at it: other
// machines could not reach it. (Debian's installer maps a machine's own name to 127.0.1.1.)
void check_reachable(const std::string& address) {
    const std::string host = address.substr(0, address.rfind(':'));
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return;  // NCCL reports it
    const uint32_t ip = ntohl(reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr);
    freeaddrinfo(found);
    if (ip >> 24 == 127)
        throw UsageError(
            fmt::format("{} is 127.{}.{}.{} on its own machine (see /etc/hosts), where no other machine "
                        "reaches it; expected "
                        "MASTER_ADDR to be its address in the network",
                        host, ip >> 16 & 255, ip >> 8 & 255, ip & 255));
}

int own_version() {
    int version = 0;
    ncclGetVersion(&version);
    return version;
}

}  // namespace

std::string nccl_version(int version) {
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

ncclUniqueId unique_id(const Process& process) {
    if (process.world_size == 1) return new_id("");
    if (process.launcher == "mpirun") {
        struct {
            ncclUniqueId id;
            int version;
        } main = {{}, own_version()};
        if (process.rank == 0) main.id = new_id("");
        if (broadcast_by_mpi(process, &main, sizeof(main))) {
            // With a version other than rank 0's, NCCL may wait forever instead of reporting it.
            if (main.version != own_version())
                throw Error(
                    fmt::format("rank {} has NCCL {}, but rank 0 has {}; expected the same on all machines",
                                process.rank, nccl_version(own_version()), nccl_version(main.version)));
            return main.id;
        }
    }
    const char* const given = std::getenv("NCCL_COMM_ID");
    const std::string address = given == nullptr ? process.main_address : given;
    if (address.empty())
        throw UsageError(fmt::format(
            "{} started {} processes on several machines and gives no address at which they can meet; "
            "expected a build with MPI "
            "(libopenmpi-dev), or torchrun or srun as the launcher",
            process.launcher, process.world_size));
    if (process.rank == 0 && process.local_size < process.world_size) check_reachable(address);
    // NCCL reads the variable here to make the id, and again when rank 0 joins, to listen.
    setenv("NCCL_COMM_ID", address.c_str(), 1);
    return new_id(address);
}
