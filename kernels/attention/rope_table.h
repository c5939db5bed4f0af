// rope_table.h: the cosines and sines by which rope.cuh turns, computed once by the host
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

// The table for `positions` positions; sign -1 turns the other way. In fp32 an angle at position 2047 is
// known to about 1e-4, so parity with transformers at long distances needs the same roundings: the power and
// the frequency are rounded to fp32 before that is multiplied by the position. All frequencies are then
// torch's, bit for bit.
inline std::vector<float> rope_table(int positions, int HS, double theta, int sign = 1) {
    const int half = HS / 2;
    std::vector<float> table(static_cast<size_t>(positions) * static_cast<size_t>(HS));
    for (int i = 0; i < half; i++) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(HS),
                    frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
        for (int t = 0; t < positions; t++) {
            const double angle = static_cast<double>(static_cast<float>(t) * frequency);
            float* const of_position = table.data() + static_cast<size_t>(t) * static_cast<size_t>(HS);
            of_position[i] = static_cast<float>(std::cos(angle));
            of_position[half + i] = static_cast<float>(sign * std::sin(angle));
        }
    }
    return table;
}
