// disk_fit.h: whether the checkpoints of a run fit on its disk, looked at before training begins.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "trainer/run/options.h"

// Bytes free on the disk of the path or, if that is not there yet, of the nearest folder above it.
// std::nullopt: unknown.
std::optional<size_t> free_bytes(const std::string& path);

// The most checkpoints that lie on the disk at once, from step `from` of a run of `steps` on: those that
// --keep and --keep-every name, the best validated one, and the one that is being written, before an older
// one goes.
size_t most_checkpoints(const Options& options, int from, int steps);

// UsageError if the disk has not even room for one checkpoint of so many bytes: the run could not be gone
// on with. A line for a person, with both numbers, if it has none for `count` of them; else "".
std::string check_disk(const std::string& folder, size_t checkpoint_bytes, size_t count, size_t free);
