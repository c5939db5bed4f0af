// local_ranks.h: the other processes of this launch on the same machine, as /proc shows them.
//   MPI and NCCL cannot say which rank is missing while they wait for it to arrive, or once they have ended.
#pragma once
#include <string>
#include <vector>

#include "trainer/distributed/launcher.h"

struct LocalRank {
    int rank;
    int pid;
    bool same_program;  // false: a script around the program, or one that starts it later
    std::string arguments;
    char state = 0;        // as in ps: R, S, D, T, ...; 0: the process is gone
    bool leaving = false;  // it has called leave_together()

    bool stopped() const { return state == 'T' || state == 't'; }
};

// Empty if the launcher does not name the launch, or the processes are hidden from each other (containers).
std::vector<LocalRank> local_ranks(const Process& process);

// The ranks that can do nothing, for an error message: "rank 2 is stopped, rank 3 does not run here"; "" if
// there are none.
std::string idle_ranks(const Process& process);

// Ends this process with one line on standard error and exit code 1, whatever its threads are waiting for.
[[noreturn]] void end_process(const Process& process, const std::string& message);

// The same when the others have not come in time: the line names the idle ranks of this machine. Takes up to
// 6 s.
[[noreturn]] void give_up(const Process& process, const std::string& message);

// For a process that ends before it meets the others, as after --help. UsageError if another rank of this
// machine runs the same program with other arguments: it would wait for this process. Nothing is checked
// below a script that the launcher started, which may go on.
void check_same_arguments(const Process& process);

// The last call of a process's main thread. Waits until the other ranks of this machine need no watching any
// more: all have called this and none is stopped, and for local rank 0 all others have ended. A launcher
// would wait for a stopped process for ever. After time_limit seconds this process gives up.
void leave_together(const Process& process, double time_limit);
