// mpi_environment.h: what Open MPI has to know before MPI_Init.
#pragma once

// Open MPI copies between processes of one machine by process_vm_readv. Containers often forbid it (Docker
// without SYS_PTRACE), and Open MPI 4 then prints lines for every message until it gives up. If the call is
// forbidden, this sets OMPI_MCA_btl_vader_single_copy_mechanism=none, unless the user has set it: copies go
// through shared memory, without lines.
void use_permitted_copies();
