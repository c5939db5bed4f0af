#include "trainer/run/disk_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "system/error.h"
#include "system/printable.h"
#include "trainer/checkpoint/checkpoint.h"

size_t most_checkpoints(const Options& o, int from, int steps) {
    const int64_t every = o.output.checkpoint_every, saved = (steps - from + every - 1) / every;
    const int64_t for_good = o.output.keep_every > 0
                                 ? steps / std::lcm(every, int64_t{o.output.keep_every}) -
                                       from / std::lcm(every, int64_t{o.output.keep_every})
                                 : 0;
    const int64_t best = o.evaluation.val_every > 0 ? 1 : 0, written = 1;
    return static_cast<size_t>(std::min(saved, o.output.keep + for_good + best + written));
}

std::string check_disk(const std::string& folder, size_t checkpoint_bytes, size_t count, size_t free) {
    const double one = space_of_checkpoints(checkpoint_bytes, 1),
                 all = space_of_checkpoints(checkpoint_bytes, count), there = static_cast<double>(free);
    CHECK(one <= there,
          "--out {}: a checkpoint needs {} on the disk, which has {} free; expected room for one, or "
          "--checkpoint-every 0",
          folder, readable(one), readable(there));
    if (count == 0 || all <= there) return "";
    return fmt::format(
        "note: up to {} checkpoints of {} need {}, but the disk of {} has {} free; when it is full, newer "
        "ones are not written",
        count, readable(checkpoint_bytes), readable(all), folder, readable(there));
}
