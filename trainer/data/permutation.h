// permutation.h: a random bijection of 0 .. size-1 in constant memory, a pure function of (size, seed,
// epoch).
//   A Feistel network over Philox permutes 0 .. 4^k - 1, the smallest such range that is large enough.
//   While a result is outside 0 .. size-1 it is permuted again, which ends because every cycle of a
//   permutation returns to its start (cycle walking: Black and Rogaway 2002, "Ciphers with Arbitrary
//   Finite Domains").
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/simt/philox.h"

class Permutation {
public:
    Permutation(uint64_t size, uint64_t seed, uint64_t epoch)
        : size_(size),
          seed_(seed),
          epoch_(epoch),
          half_bits_(std::max(4, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2)) {}

    // The image of index, which must be below size.
    uint64_t operator()(uint64_t index) const {
        do index = encrypt(index);
        while (index >= size_);
        return index;
    }

private:
    // Halves have at least four bits, and there are eight rounds: with fewer, short permutations are
    // visibly not uniform.
    uint64_t encrypt(uint64_t value) const {
        const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
        uint64_t left = value >> half_bits_, right = value & mask;
        for (uint32_t round = 0; round < 8; round++) {
            const Philox4 counter = {{static_cast<uint32_t>(right), round | purpose,
                                      static_cast<uint32_t>(epoch_), static_cast<uint32_t>(epoch_ >> 32)}};
            const Philox4 random =
                philox4x32_10(counter, static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32));
            const uint64_t next = left ^ (random.x[0] & mask);
            left = right;
            right = next;
        }
        return left << half_bits_ | right;
    }

    // Separates these numbers from other uses of the same seed.
    static constexpr uint32_t purpose = 0xDA7A0000;
    uint64_t size_, seed_, epoch_;
    int half_bits_;
};
