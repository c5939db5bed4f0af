// batch.h: the tokens of a micro-step in the model's layout: N = B*T positions, row by row.
#pragma once
#include <cstddef>
#include <cstdint>

struct Batch {
    int B = 0, T = 0;
    int target_count = 0;  // targets that are not ignored
    // Targets that are not ignored in the whole step, over all processes and micro-steps; -1: every token
    // is one.
    int64_t step_targets = -1;
    // (B, T). One block of memory holds inputs, targets and order, so that one copy moves all three.
    int32_t* inputs = nullptr;
    int32_t* targets = nullptr;  // (B, T); -1 is ignored
    // (B*T); the positions 0 .. N-1 sorted by input token, equal tokens by position. The encoder's
    // backward adds in this fixed order.
    int32_t* order = nullptr;

    static constexpr int32_t ignored = -1;
    size_t bytes() const { return size_t{3} * B * T * sizeof(int32_t); }  // of the whole block
};
