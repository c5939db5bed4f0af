// local_ranks.h: ends a process that waits for others in vain, and says which ones.
//   MPI and NCCL cannot name a missing rank while they wait for it to join, nor while they wait for it to
//   end. /proc lists the processes of this machine with their launchers' variables.
#pragma once
#include <string>

#include "trainer/distributed/launcher.h"

// The ranks that cannot make progress, for an error message: "rank 2 is stopped, rank 3 does not run on
// this machine"; "" if there are none, if the launcher gives the launch no name, or if the processes cannot
// see each other (containers).
std::string idle_ranks(const Process& process);

// Ends this process at once, whatever its threads wait for, with one line on standard error and exit code
// 1.
[[noreturn]] void end_process(const Process& process, const std::string& message);

// The same when other processes have exceeded the time limit: the line also names the idle ranks of this
// machine. Takes up to 6 s.
[[noreturn]] void give_up(const Process& process, const std::string& message);

// The kernel kills this process after this many seconds, even if it is stopped: a launcher would wait for it
// forever. Call before the process leaves the others, who then no longer wait for it.
void end_within(double seconds);

// For a process that ends before it meets the others, such as after --help. UsageError if another rank of
// this machine runs the same program with other arguments, because it would wait for this process.
// Nothing is checked if a script that the launcher started runs this program, since the script may
// continue.
void check_same_arguments(const Process& process);
