#include "trainer/distributed/mpi_environment.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>

void use_permitted_copies() {
    char from = 1, to = 0;
    const iovec local{&to, 1}, remote{&from, 1};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1) return;
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}
