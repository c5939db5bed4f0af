// local_ranks.h: the other processes of this launch on the same machine, as listed in /proc.
//   MPI and NCCL cannot name a missing rank while they wait for it to join, nor while they wait for it to
//   end.
#pragma once
#include <string>
#include <vector>

#include "trainer/distributed/launcher.h"

struct LocalRank {
    int rank;
    int pid;
    bool same_program;  // false: a script that runs the program, or will run it later
    std::string arguments;
    char state = 0;        // as in ps: R, S, D, T, ...; 0: the process has ended
    bool leaving = false;  // it has called leave_together()

    bool stopped() const { return state == 'T' || state == 't'; }
};

// Empty if the launcher gives the launch no name, or if the processes cannot see each other (containers).
std::vector<LocalRank> local_ranks(const Process& process);

// The ranks that cannot make progress, for an error message: "rank 2 is stopped, rank 3 does not run on
// this machine"; "" if there are none.
std::string idle_ranks(const Process& process);

// Ends this process at once, whatever its threads wait for, with one line on standard error and exit code
// 1.
[[noreturn]] void end_process(const Process& process, const std::string& message);

// The same when other processes have exceeded the time limit: the line also names the idle ranks of this
// machine. Takes up to 6 s.
[[noreturn]] void give_up(const Process& process, const std::string& message);

// For a process that ends before it meets the others, such as after --help. UsageError if another rank of
// this machine runs the same program with other arguments, because it would wait for this process.
// Nothing is checked if a script that the launcher started runs this program, since the script may
// continue.
void check_same_arguments(const Process& process);

// The last call of a process's main thread. Waits until no other rank of this machine needs watching: all
// have called this function and none is stopped; local rank 0 waits until all others have ended. Without
// it, a launcher would wait forever for a stopped process. After time_limit seconds this process gives
// up.
void leave_together(const Process& process, double time_limit);
