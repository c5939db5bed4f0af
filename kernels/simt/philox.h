// philox.h: Philox4x32-10, a counter-based generator: 128 random bits are a pure function of a 128-bit
//   counter and a 64-bit key, the same on every machine
//   One round: (x0, x1, x2, x3) -> (hi(M1 x2) ^ x1 ^ k0, lo(M1 x2), hi(M0 x0) ^ x3 ^ k1, lo(M0 x0))
//   Between rounds the key grows by (W0, W1).
//   Salmon, Moraes, Dror and Shaw 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"
#pragma once
#include <cstdint>

#include "kernels/simt/host_device.h"

struct Philox4 {
    uint32_t x[4];
};

HOST_DEVICE constexpr Philox4 philox4x32_10(Philox4 counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = uint64_t{0xD2511F53} * counter.x[0];
        const uint64_t product1 = uint64_t{0xCD9E8D57} * counter.x[2];
        counter = {
            {static_cast<uint32_t>(product1 >> 32) ^ counter.x[1] ^ key0, static_cast<uint32_t>(product1),
             static_cast<uint32_t>(product0 >> 32) ^ counter.x[3] ^ key1, static_cast<uint32_t>(product0)}};
        key0 += 0x9E3779B9;  // the golden ratio
        key1 += 0xBB67AE85;  // sqrt(3) - 1
    }
    return counter;
}
