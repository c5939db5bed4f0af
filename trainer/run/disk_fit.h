// disk_fit.h: checks before training whether the checkpoints of a run fit on its disk.
#pragma once
#include <cstddef>
#include <string>

#include "trainer/run/options.h"

// The largest number of checkpoints on the disk at once, from step `from` to the end of a run of `steps`:
// those that --keep and --keep-every keep, the one with the lowest validation loss, and the one that is
// being written before an older one is removed.
size_t most_checkpoints(const Options& options, int from, int steps);

// UsageError if the disk has no room for a single checkpoint, since the run could not be resumed. Returns
// a line for the user, with both sizes, if there is no room for `count` checkpoints; else "".
std::string check_disk(const std::string& folder, size_t checkpoint_bytes, size_t count, size_t free);
