// replicas.h: checks that all processes of a run start alike and hold the same parameters.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "system/note.h"
#include "trainer/distributed/communicator.h"
#include "trainer/run/resume.h"

// All functions are called by all ranks together, and all ranks get the same result.

// find_resume_point for several processes: rank 0 looks, before any process changes a folder, and sends
// the result to the others.
ResumePoint find_resume_point(const Options& options, Communicator& communicator, const Note& note);

// UsageError that names the first rank whose description differs from rank 0's, and the difference.
void check_same_start(Communicator& communicator, const nlohmann::json& description);
// Error that names the first rank whose parameters have another checksum than rank 0's.
void check_replicas(Communicator& communicator, uint64_t checksum, int step);
// True if condition holds on any rank.
bool in_any_process(Communicator& communicator, bool condition);
size_t smallest_over_processes(Communicator& communicator, size_t mine);
