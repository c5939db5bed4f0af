// replicas.h: several processes train one model only if they agree on what they do; here they see that they
// do.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>

#include "system/note.h"
#include "trainer/distributed/communicator.h"
#include "trainer/run/resume.h"

// Called by all processes together; all get the same answer.

// find_resume_point for several processes: rank 0 looks, before any of them changes a folder, and tells the
// others.
ResumePoint find_resume_point(const Options& options, Communicator& communicator, const Note& note);

// UsageError that names the first process whose description differs from rank 0's, and where.
void check_same_start(Communicator& communicator, const nlohmann::json& description);
// Error that names the first process whose parameters have another checksum than rank 0's.
void check_replicas(Communicator& communicator, uint64_t checksum, int step);
// Whether this holds in any process.
bool in_any_process(Communicator& communicator, bool condition);
size_t smallest_over_processes(Communicator& communicator, size_t mine);
