#include "trainer/distributed/bootstrap.h"

bool broadcast_by_mpi(const Process&, void*, size_t) { return false; }
