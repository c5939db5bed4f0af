// matmul_tuning.h: the algorithms that a run multiplies with on a GPU. Rank 0 finds the fastest by timing
//   before the first step and tells the other processes; the run's folder keeps them, so that a resumed run
//   computes the same bits. On CPUs there is nothing to choose and nothing is written. FLATGPT_MATMULS=FILE
//   shares what was found among runs: they go by the choices of FILE, except for those that their own folder
//   names, and add to FILE what they time.
#pragma once
#include <functional>
#include <string>

#include "kernels/gemm/gemm.h"
#include "system/note.h"
#include "trainer/distributed/communicator.h"
#include "trainer/run/resume.h"

// OUT/matmul_algorithms.json; docs/formats.md describes it.
std::string matmul_file(const std::string& run_folder);

// Called by all processes together, when the run's folder is theirs. rehearse() multiplies everything that a
// step will; only rank 0 calls it, and only to time what the file does not name yet. A file that is of
// another GPU or library, or damaged, counts as none, and a line says so; a run that branches off takes over
// the file of the run it comes from. Timing begins for at most 60 s (or FLATGPT_MATMUL_SECONDS) and at most
// most_seconds, while the others wait; what is not timed by then is left to the library's own choice. With
// most_seconds = 0 nothing is timed, and FLATGPT_MATMULS is not looked at.
void tune_matmuls(Gemm& gemm, const std::function<void()>& rehearse, const ResumePoint& from,
                  double most_seconds, Communicator& communicator, const Note& note);
