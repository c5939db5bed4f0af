#!/bin/sh
# mpirun for tests: also as root, with more processes than cores, and with a folder for its sessions that no other
# mpirun uses. By default all of a user's share one in /tmp; the last to end removes it, and one that starts at that
# moment fails ("unable to create the desired directory: File exists"; Open MPI 4.1). The environment's MPIRUN names
# another mpirun than the one in PATH.
sessions=${TMPDIR:-/tmp}/flatgpt-mpi
for left in "$sessions".*; do
    [ -d "$left" ] && ! kill -0 "${left##*.}" 2>/dev/null && rm -rf "$left"
done
export OMPI_MCA_orte_tmpdir_base="$sessions.$$" # of this process, which mpirun becomes
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$OMPI_MCA_orte_tmpdir_base"
exec "${MPIRUN:-mpirun}" --oversubscribe --bind-to none "$@"
