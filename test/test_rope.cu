// Rotary position embeddings in place on packed qkv: against plain_llama.h, and back again.
#include "common.cuh"
#include "kernels/attention/rope.cuh"
#include "plain_llama.h"

namespace {

template <class W>
class Rope : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 4, 8>;
TYPED_TEST_SUITE(Rope, Widths);

// Head sizes whose halves are whole vectors, and others; one head of k and v for all, for three, for each.
const std::vector<AttentionShape> shapes = {{2, 5, 1, 2, 1},   {1, 7, 3, 6, 1},  {2, 3, 6, 16, 2},
                                            {1, 33, 9, 64, 3}, {1, 4, 4, 80, 4}, {3, 2, 2, 128, 1}};
constexpr double theta = 10000;
constexpr float eps = 1e-6f;

size_t elements(AttentionShape s) { return static_cast<size_t>(s.B * s.T * (s.NH + 2 * s.NKV) * s.HS); }

std::string describe(AttentionShape s) {
    return fmt::format("B={} T={} NH={} NKV={} HS={}", s.B, s.T, s.NH, s.NKV, s.HS);
}

void turn(std::vector<Bounded>& qkv, AttentionShape s, double direction, int first) {
    plain::rope(qkv.data(), theta, direction, static_cast<size_t>(first), s.B, s.T, s.NH, s.NKV, s.HS);
}

// The table's cosines and sines are those of an angle that was rounded twice to fp32: up to 2^-23 of itself.
template <class T>
void expect_turned(const std::vector<float>& actual, std::vector<Bounded> expected, int last_position) {
    const double of_angle = last_position * 0x1p-23;
    expect_within(actual, expected, [&](Bounded e) {
        return 8 * epsilon<float> * e.size() +
               (std::is_same_v<T, float> ? 0 : 1.01 * epsilon<T>)*std::abs(e.value) + 4 * of_angle;
    });
}

template <class W, class T>
void test_rope(AttentionShape s, int first) {
    SCOPED_TRACE(fmt::format("{}, from position {}", describe(s), first));
    const auto qkv = random_values<T>(elements(s), 1);
    const auto table = upload<float>(rope_table(first + s.T, s.HS, theta));
    auto turned = upload<T>(qkv);
    const simt::DeviceBuffer<int> before(1);
    simt::copy_to_device(before.data(), &first, sizeof(first), nullptr);
    rope<W>(turned.data(), {}, {table.data(), 1, before.data()}, s, nullptr);
    std::vector<Bounded> expected = exact(qkv);
    turn(expected, s, 1, first);
    expect_turned<T>(download(turned), expected, first + s.T);
    // The values do not turn.
    const size_t row = static_cast<size_t>((s.NH + 2 * s.NKV) * s.HS),
                 turns = static_cast<size_t>((s.NH + s.NKV) * s.HS);
    const std::vector<float> after = download(turned);
    for (size_t i = 0; i < after.size(); i++) {
        if (i % row >= turns) { ASSERT_EQ(after[i], qkv[i]) << "element " << i; }
    }

    if (first > 0) return;
    auto back = upload<T>(qkv);
    rope<W>(back.data(), {}, {table.data(), -1}, s, nullptr);
    expected = exact(qkv);
    turn(expected, s, -1, 0);
    expect_turned<T>(download(back), expected, s.T);
    rope<W>(back.data(), {}, {table.data()}, s, nullptr);
    EXPECT_LE(relative_error(download(back), qkv), 4 * epsilon<T>) << "turned back and forth";
}

TYPED_TEST(Rope, MatchesDoublePrecision) {
    for (const AttentionShape& shape : shapes) {
        for (const int first : {0, 19}) {
            test_rope<TypeParam, float>(shape, first);
            test_rope<TypeParam, bfloat16>(shape, first);
        }
    }
}

// Heads that turn the other way and are normalised, as nanochat's: against plain loops that do one after the
// other, and backward from the normalised heads.
template <class W, class T>
void test_normalised(AttentionShape s) {
    SCOPED_TRACE(describe(s));
    const size_t heads = static_cast<size_t>(s.B * s.T * (s.NH + s.NKV)), HS = static_cast<size_t>(s.HS);
    const auto qkv = random_values<T>(elements(s), 1), dqkv = random_values<T>(elements(s), 2);
    const auto table = upload<float>(rope_table(s.T, s.HS, theta));
    auto y = upload<T>(qkv), dx = upload<T>(dqkv);
    auto rstd = poisoned<float>(heads);
    rope<W>(y.data(), {eps, rstd.data()}, {table.data(), -1}, s, nullptr);

    // Unturned, because the order does not matter; heads of ones as weights.
    std::vector<Bounded> expected = exact(qkv), r(1), ones(HS, Bounded(1)), unused(HS);
    const auto for_each_head = [&](auto body) {
        for (size_t row = 0; row < heads; row++) {
            const size_t turned = static_cast<size_t>(s.NH + s.NKV), token = row / turned;
            body((token * (turned + static_cast<size_t>(s.NKV)) + row % turned) * HS);
        }
    };
    turn(expected, s, -1, 0);
    for_each_head([&](size_t at) {
        plain::rmsnorm_forward(&expected[at], r.data(), std::vector(expected).data() + at, ones.data(), eps,
                               1, HS);
    });
    expect_turned<T>(download(y), expected, s.T);

    // From the heads that forward has stored, which in bf16 are rounded.
    rope<W>(dx.data(), {.eps = eps, .rstd = rstd.data(), .y = y.data()}, {table.data()}, s, nullptr);
    std::vector<Bounded> from = exact(dqkv);
    const std::vector<Bounded> normalised = exact(download(y));
    const std::vector<float> rstds = download(rstd);
    size_t row = 0;
    for_each_head([&](size_t at) {
        const Bounded factor(static_cast<double>(rstds[row++]));
        const Bounded average = plain::dot(&from[at], &normalised[at], HS) / Bounded(s.HS);
        for (size_t i = at; i < at + HS; i++) from[i] = (from[i] - normalised[i] * average) * factor;
    });
    turn(from, s, 1, 0);
    expect_turned<T>(download(dx), from, s.T);
}
TYPED_TEST(Rope, NormalisedHeadsMatchDoublePrecision) {
    for (const AttentionShape& shape : shapes) {
        test_normalised<TypeParam, float>(shape);
        test_normalised<TypeParam, bfloat16>(shape);
    }
}

// Heads that are normalised with weights, then turn, as Qwen3's: against plain loops that do one after the
// other.

// True if an element of packed qkv belongs to the values, or to the queries.
bool is_value(size_t i, AttentionShape s) {
    return static_cast<int>(i) / s.HS % (s.NH + 2 * s.NKV) >= s.NH + s.NKV;
}
bool is_query(size_t i, AttentionShape s) { return static_cast<int>(i) / s.HS % (s.NH + 2 * s.NKV) < s.NH; }
// The elements of the queries, or of the keys.
std::vector<Bounded> heads_of(const std::vector<Bounded>& qkv, AttentionShape s, bool of_q) {
    std::vector<Bounded> heads;
    for (size_t i = 0; i < qkv.size(); i++)
        if (!is_value(i, s) && is_query(i, s) == of_q) heads.push_back(qkv[i]);
    return heads;
}
// The reverse.
void replace_heads(std::vector<Bounded>& qkv, const std::vector<Bounded>& heads, AttentionShape s,
                   bool of_q) {
    size_t next = 0;
    for (size_t i = 0; i < qkv.size(); i++)
        if (!is_value(i, s) && is_query(i, s) == of_q) qkv[i] = heads[next++];
}

template <class W, class T>
void test_weighted(AttentionShape s) {
    SCOPED_TRACE(describe(s));
    const size_t HS = static_cast<size_t>(s.HS), tokens = static_cast<size_t>(s.B * s.T),
                 turned = tokens * static_cast<size_t>(s.NH + s.NKV);
    const auto qkv = random_values<T>(elements(s), 1), dqkv = random_values<T>(elements(s), 2),
               q_weight = random_values<T>(HS, 3, 0.5f, 1.0f), k_weight = random_values<T>(HS, 4, 0.5f, 1.0f);
    const auto table = upload<float>(rope_table(s.T, s.HS, theta));
    const auto wq = upload<T>(q_weight), wk = upload<T>(k_weight);
    auto y = upload<T>(qkv), dx = upload<T>(dqkv), x = poisoned<T>(turned * HS);
    auto rstd = poisoned<float>(turned);
    const HeadNorms<T> norms{eps, rstd.data(), wq.data(), wk.data(), nullptr, x.data()};
    rope<W>(y.data(), norms, {table.data()}, s, nullptr);
    std::vector<float> unturned;
    for (size_t i = 0; i < qkv.size(); i++)
        if (!is_value(i, s)) unturned.push_back(qkv[i]);
    EXPECT_EQ(download(x), unturned);

    // Backward adds to the weights' gradients.
    const auto before = random_values<float>(HS, 5);
    auto dwq = upload<float>(before), dwk = upload<float>(before),
         scratch = poisoned<float>(weighted_rope_sums<W>(tokens) * 2 * HS);
    weighted_rope_backward<W>(dx.data(), dwq.data(), dwk.data(), scratch.data(), norms, {table.data(), -1}, s,
                              nullptr);

    std::vector<Bounded> out = exact(qkv), back = exact(dqkv);
    turn(back, s, -1, 0);
    std::vector<Bounded> din = back;
    for (const bool of_q : {true, false}) {
        const std::vector<Bounded> heads = heads_of(exact(qkv), s, of_q),
                                   weight = exact(of_q ? q_weight : k_weight);
        const size_t rows = heads.size() / HS;
        std::vector<Bounded> norm(heads.size()), r(rows), dhead(heads.size()), dweight = exact(before);
        plain::rmsnorm_forward(norm.data(), r.data(), heads.data(), weight.data(), eps, rows, HS);
        plain::rmsnorm_backward(dhead.data(), dweight.data(), heads_of(back, s, of_q).data(), heads.data(),
                                weight.data(), r.data(), rows, HS);
        replace_heads(out, norm, s, of_q);
        replace_heads(din, dhead, s, of_q);
        // Each row adds its error of the angle.
        expect_turned<float>(download(of_q ? dwq : dwk), dweight, static_cast<int>(rows) * s.T);
    }
    turn(out, s, 1, 0);
    expect_turned<T>(download(y), out, s.T);
    // The values' gradients are not touched.
    const std::vector<float> after = download(dx);
    for (size_t i = 0; i < din.size(); i++)
        if (is_value(i, s)) { ASSERT_EQ(after[i], dqkv[i]) << "element " << i; }
    expect_turned<T>(after, din, s.T);
}
TYPED_TEST(Rope, HeadsNormalisedWithWeightsMatchDoublePrecision) {
    std::vector<AttentionShape> all = shapes;
    all.push_back({2, 70, 3, 16, 1});  // several groups of tokens
    all.push_back({1, 9, 2, 34, 2});   // halves that are no whole vectors
    for (const AttentionShape& shape : all) {
        test_weighted<TypeParam, float>(shape);
        test_weighted<TypeParam, bfloat16>(shape);
    }
}

// The product of a query at position t and a key at position s is a function of t - s.
TYPED_TEST(Rope, ScoresDependOnTheDistanceAlone) {
    const AttentionShape s{1, 40, 1, 32};
    const auto head = random_values<float>(3 * 32, 2);  // the same q, k and v at every position
    std::vector<float> qkv;
    for (int t = 0; t < s.T; t++) qkv.insert(qkv.end(), head.begin(), head.end());
    const auto table = upload<float>(rope_table(s.T, s.HS, theta));
    auto turned = upload<float>(qkv);
    rope<TypeParam>(turned.data(), {}, {table.data()}, s, nullptr);
    const std::vector<float> x = download(turned);
    const auto score = [&](int t, int from) {
        double sum = 0;
        for (int i = 0; i < s.HS; i++)
            sum += static_cast<double>(x[static_cast<size_t>(t * 96 + i)]) *
                   static_cast<double>(x[static_cast<size_t>(from * 96 + 32 + i)]);
        return sum;
    };
    for (int distance = 0; distance < s.T; distance++) {
        for (int t = distance; t < s.T; t++)
            EXPECT_NEAR(score(t, t - distance), score(distance, 0), 1e-4) << t << ", " << distance;
    }
    EXPECT_GT(std::abs(score(1, 0) - score(0, 0)), 0.1);
}

TEST(RopeShapes, OddHeadsAndEmptyShapesAreRefused) {
    float* none = nullptr;
    for (const AttentionShape& shape : {AttentionShape{1, 1, 1, 3}, AttentionShape{0, 1, 1, 2},
                                        AttentionShape{1, 1, 1, 0}, AttentionShape{1, 1, 1, 130}}) {
        EXPECT_THROW(rope(none, {}, {none}, shape, nullptr), UsageError);
        EXPECT_THROW(weighted_rope_backward(none, none, none, none, {}, {none}, shape, nullptr), UsageError);
    }
}

}  // namespace
