// Philox4x32-10 gives the bits of the paper: known-answer vectors of Random123's kat_vectors file.
#include <gtest/gtest.h>

#include "kernels/simt/philox.h"

static void expect_words(Philox4 got, Philox4 expected) {
    for (int i = 0; i < 4; i++) EXPECT_EQ(got.x[i], expected.x[i]) << "word " << i;
}

TEST(Philox, MatchesRandom123KnownAnswers) {
    expect_words(philox4x32_10({{0, 0, 0, 0}}, 0, 0), {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
    expect_words(philox4x32_10({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff),
                 {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
    expect_words(philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
                 {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

// The host uses it at compile time too.
static_assert(philox4x32_10({{0, 0, 0, 0}}, 0, 0).x[0] == 0x6627e8d5);
