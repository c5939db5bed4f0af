// batch.h: the tokens of a micro-step, as the model takes them: N = B*T positions, row by row.
#pragma once
#include <cstddef>
#include <cstdint>

struct Batch {
    int B = 0, T = 0;
    int target_count = 0;  // targets that are not ignored
    // such targets in the whole step, over all processes and micro-steps; -1: every token of it
    int64_t step_targets = -1;
    // (B, T); one block of memory holds inputs, targets and order, so that one copy moves all three
    int32_t* inputs = nullptr;
    int32_t* targets = nullptr;  // (B, T); -1 is ignored
    // (B*T); 0 .. N-1 sorted by input token, equal tokens by position: a fixed order for the encoder's
    // backward
    int32_t* order = nullptr;

    static constexpr int32_t ignored = -1;
    size_t bytes() const { return size_t{3} * B * T * sizeof(int32_t); }  // of the block at inputs
};
