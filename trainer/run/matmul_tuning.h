// matmul_tuning.h: chooses the algorithms of a run's matrix products on a GPU. Rank 0 times them before
//   the first step and sends the fastest ones to the other ranks. The run's folder keeps the choices, so
//   that a resumed run computes the same bits. On a CPU there is nothing to choose and nothing is
//   written. FLATGPT_MATMULS=FILE shares choices among runs: a run uses those of FILE, except where its
//   own folder has some, and adds what it times to FILE.
#pragma once
#include <functional>
#include <string>

#include "kernels/gemm/gemm.h"
#include "system/note.h"
#include "trainer/distributed/communicator.h"
#include "trainer/run/resume.h"

// OUT/matmul_algorithms.json; docs/formats.md describes it.
std::string matmul_file(const std::string& run_folder);

// Called by all ranks together, after the run's folder was claimed. rehearse() performs every product of
// a step; only rank 0 calls it, and only to time products that the file does not have yet. A file of
// another GPU or library, or a damaged one, is ignored with a note. A run that branches off takes over
// the file of the run that it branches off from. No timing begins after 60 s (or FLATGPT_MATMUL_SECONDS)
// or after most_seconds, while the other ranks wait; the library chooses for products that were not timed
// by then. With most_seconds = 0 nothing is timed and FLATGPT_MATMULS is ignored.
void tune_matmuls(Gemm& gemm, const std::function<void()>& rehearse, const ResumePoint& from,
                  double most_seconds, Communicator& communicator, const Note& note);
