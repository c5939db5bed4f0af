// Attention of one query over the cache, and the contents of the cache, against plain_gpt2.h.
#include "common.cuh"
#include "kernels/decode/decode_attention.cuh"
#include "plain_llama.h"

namespace {

struct Shape {
    int samples, NH, HS, max_tokens, length, NKV = NH;
};
// One token; lengths around a tile and around a chunk; head sizes on both sides of 32, 64, 96 and 128; three
// chunks, of which the last ones may be empty; heads that share keys and values.
const std::vector<Shape> shapes = {{1, 1, 1, 1, 1},       {2, 3, 16, 40, 33},      {1, 2, 33, 64, 64},
                                   {3, 1, 64, 70, 17},    {1, 2, 80, 50, 5},       {2, 1, 128, 300, 257},
                                   {1, 1, 100, 256, 256}, {1, 2, 64, 600, 530},    {1, 1, 32, 600, 200},
                                   {2, 3, 16, 40, 33, 1}, {1, 9, 64, 300, 257, 3}, {3, 4, 2, 20, 18, 2}};

template <class W>
class DecodeAttention : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(DecodeAttention, Widths);

template <class T>
struct Cache {
    DecodeCache<T> cache;
    simt::DeviceBuffer<T> keys, values;
    explicit Cache(const Shape& s) : cache{nullptr, nullptr, s.samples, s.NH, s.HS, s.max_tokens, s.NKV} {
        keys = poisoned<T>(cache.elements());
        values = poisoned<T>(cache.elements());
        cache.keys = keys.data(), cache.values = values.data();
    }
};

// All tokens but the last are a prompt that all samples share; the last one differs between samples.
template <class W, class T>
void test_attention(const Shape& s) {
    SCOPED_TRACE(testing::Message() << s.samples << " samples, NH = " << s.NH << ", NKV = " << s.NKV
                                    << ", HS = " << s.HS << ", " << s.length << " of " << s.max_tokens);
    const size_t width = static_cast<size_t>(s.NH * s.HS), samples = static_cast<size_t>(s.samples),
                 packed = width + static_cast<size_t>(2 * s.NKV * s.HS);
    const size_t prompt_tokens = static_cast<size_t>(s.length) - 1;
    const auto prompt = random_values<T>(prompt_tokens * packed, 1),
               last = random_values<T>(samples * packed, 2, 1.5f);
    Cache<T> memory(s);
    if (prompt_tokens > 0) {
        const auto prompt_ = upload<T>(prompt);
        decode_append<W>(memory.cache, prompt_.data(), upload(std::vector<int>{0}).data(), s.length - 1, true,
                         nullptr);
    }
    const auto last_ = upload<T>(last);
    const auto before = upload(std::vector<int>{s.length - 1});
    decode_append<W>(memory.cache, last_.data(), before.data(), 1, false, nullptr);
    auto scratch = poisoned<float>(decode_attention_scratch<W>(s.samples, s.NH, s.HS, s.max_tokens));

    // The whole attention over each sample's tokens, of which the last one's output counts.
    std::vector<Bounded> expected;
    for (size_t k = 0; k < samples; k++) {
        std::vector<Bounded> qkv = exact(prompt), all(static_cast<size_t>(s.length) * width);
        for (size_t i = 0; i < packed; i++) qkv.emplace_back(last[k * packed + i]);
        qkv = plain::repeat_heads(qkv, s.NH, s.NKV, s.HS);
        std::vector<Bounded> lse(all.size());
        plain::attention_forward(all.data(), lse.data(), qkv.data(), 1, prompt_tokens + 1, s.NH, s.HS);
        expected.insert(expected.end(), all.end() - static_cast<ptrdiff_t>(width), all.end());
    }
    // A launch for more tokens than there are gives the same, also with chunks that have none.
    for (const int most : {s.length, s.max_tokens}) {
        auto out = poisoned<T>(samples * width);
        decode_attention<W>(out.data(), last_.data(), memory.cache, before.data(), most, scratch.data(),
                            nullptr);
        expect_close(out, expected);
    }
}

TYPED_TEST(DecodeAttention, MatchesDoublePrecision) {
    for (const Shape& shape : shapes) {
        test_attention<TypeParam, float>(shape);
        test_attention<TypeParam, bfloat16>(shape);
    }
}

// Scores far apart: the largest is subtracted in every chunk and between chunks, and nothing overflows.
TYPED_TEST(DecodeAttention, LargeScoresStayFinite) {
    const Shape s{1, 1, 32, 600, 600};
    Cache<float> memory(s);
    std::vector<float> qkv(600 * 3 * 32, 0.0f);
    for (size_t t = 0; t < 600; t++) {
        qkv[t * 96] = 100.0f;                          // q
        qkv[t * 96 + 32] = t == 300 ? 20.0f : -20.0f;  // k: the score of token 300 is 353, of the others -353
        qkv[t * 96 + 64] = static_cast<float>(t);      // v
    }
    const auto qkv_ = upload<float>(qkv);
    decode_append<TypeParam>(memory.cache, qkv_.data(), upload(std::vector<int>{0}).data(), 600, false,
                             nullptr);
    auto out = poisoned<float>(32);
    auto scratch = poisoned<float>(decode_attention_scratch<TypeParam>(1, 1, 32, 600));
    decode_attention<TypeParam>(out.data(), qkv_.data(), memory.cache, upload(std::vector<int>{599}).data(),
                                600, scratch.data(), nullptr);
    std::vector<float> expected(32, 0.0f);
    expected[0] = 300.0f;
    EXPECT_EQ(download(out), expected);
}

TEST(DecodeCache, RefusesWhatItCannotHold) {
    Cache<float> memory({1, 1, 8, 4, 4});
    const auto qkv = upload<float>(std::vector<float>(5 * 24, 1.0f));
    simt::DeviceBuffer<float> out(8), scratch(decode_attention_scratch(1, 1, 8, 4));
    const auto before = upload(std::vector<int>{0});
    EXPECT_THROW(decode_append(memory.cache, qkv.data(), before.data(), 5, false, nullptr), UsageError);
    EXPECT_THROW(
        decode_attention(out.data(), qkv.data(), memory.cache, before.data(), 5, scratch.data(), nullptr),
        UsageError);
}

}  // namespace
