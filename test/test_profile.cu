// The counts and times of --profile: bytes and flops against a count by hand, times against the clock.
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "kernels/copy.cuh"
#include "model.cuh"
#include "trainer/run/logger.h"

namespace {

// 2 layers, 3 heads of 16; 131 tokens, padded to 256.
constexpr ModelConfig config{131, 32, 2, 3, 48};
constexpr size_t B = 3, T = 19, N = B * T, C = 48, L = 2, NH = 3, Vp = 256, micro_steps = 2;

struct Measured {
    nlohmann::ordered_json report;
    std::map<std::string, nlohmann::ordered_json> rows;
};

// The report of `steps` steps, of two micro-steps each. Work outside a step, such as an evaluation between
// two of them, must not count.
template <class Type>
Measured measure(int steps, ModelOptions options = {}) {
    options.B = B, options.T = T, options.total_batch = micro_steps * N;
    Model<Type> model(make_family<Type>(config), options);
    model.allocate();
    model.profile().measure(steps);
    std::mt19937 generator(5);
    std::vector<int> inputs(N), targets(N);
    for (size_t i = 0; i < N; i++)
        inputs[i] = static_cast<int>(generator() % 131), targets[i] = static_cast<int>(generator() % 131);
    const OwnedBatch batch(B, T, inputs, targets);
    bool complete = false;
    for (int step = 1; step <= Profile::warm_up + steps + 1; step++) {
        const auto start = std::chrono::steady_clock::now();
        model.profile().begin_step();
        EXPECT_EQ(model.profile().measuring(),
                  steps > 0 && step >= Profile::warm_up && step <= Profile::warm_up + steps)
            << step;
        for (size_t micro = 0; micro < micro_steps; micro++) {
            model.forward(batch);
            model.backward(micro + 1 == micro_steps);
        }
        model.update(reference_adamw);
        const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
        const bool last = model.profile().end_step(elapsed.count());
        EXPECT_EQ(last, steps > 0 && step == Profile::warm_up + steps) << step;
        complete = complete || last;
        model.evaluate(batch);
    }
    EXPECT_EQ(complete, steps > 0);
    Measured measured{model.profile().report({1e9, 1e9}), {}};
    for (const auto& row : measured.report["operations"]) {
        const std::string name = row["name"];  // nvcc 13.5 does not parse get<std::string>() here
        EXPECT_TRUE(measured.rows.emplace(name + row["shape"].dump(), row).second) << row;
    }
    return measured;
}

struct Expected {
    double calls, bytes, flops;  // per step
};

// By hand: the tensors that each call reads and writes. e: bytes of a parameter or activation.
std::map<std::string, Expected> count_by_hand(size_t e, bool rounded) {
    std::map<std::string, Expected> rows;
    const auto add = [&](const std::string& name, size_t calls, size_t bytes, size_t flops = 0) {
        rows[name] = {static_cast<double>(calls), static_cast<double>(calls * bytes),
                      static_cast<double>(calls * flops)};
    };
    const auto shape = [](size_t c, size_t oc) {
        return "[57," + std::to_string(c) + "," + std::to_string(oc) + "]";
    };
    const size_t layers = micro_steps * L;
    // inputs, targets, order
    add("tokens to the devicenull", micro_steps, 3 * N * 4);
    add("encodernull", micro_steps, (N * C + N * C) * e);  // rows of wte, out
    // only the first: the others follow a residual
    add("layernormnull", micro_steps, (N * C + N * C) * e);
    add("residual + layernormnull", 2 * layers, (N * C + N * C + N * C + N * C) * e);  // two in, sum, out
    // q k^T, p v
    add("attentionnull", layers, (3 * N * C + N * C) * e + B * NH * T * 4, 2 * 2 * B * NH * T * T * 16 / 2);
    add("attention backwardnull", layers, (3 * N * C + N * C + N * C + 3 * N * C) * e + B * NH * T * 4,
        5 * 2 * B * NH * T * T * 16 / 2);
    add("classifiernull", micro_steps, (N * Vp + N * Vp) * e);
    add("sum of lossesnull", micro_steps, N * 4);
    // The backward pass of ln_f has no residual gradient to add.
    add("layernorm backwardnull", micro_steps, (2 * L * (N * C * 4) + N * C * 3) * e);
    rows["layernorm backwardnull"].calls = static_cast<double>(micro_steps * (2 * L + 1));
    add("encoder backwardnull", micro_steps, (N * C + N * C) * e);

    struct Matmul {
        const char* name;
        size_t calls, in, out;
    };
    for (const Matmul& m :
         {Matmul{"qkv", layers, C, 3 * C}, Matmul{"attproj", layers, C, C}, Matmul{"fc", layers, C, 4 * C},
          Matmul{"fcproj", layers, 4 * C, C}, Matmul{"head", micro_steps, C, Vp}}) {
        const std::string name = m.name, dims = shape(m.in, m.out);
        const size_t flops = 2 * N * m.in * m.out, three = (N * m.in + m.out * m.in + N * m.out) * e;
        const size_t pre_gelu = N * 4 * C * e;  // kept by fc, read again by fcproj's gradient
        add(name == "fc" ? "fc + GELU" + dims : name + dims, m.calls, three + (name == "fc" ? pre_gelu : 0),
            flops);
        add(name == "fcproj" ? "fcproj dX + dGELU" + dims : name + " dX" + dims, m.calls,
            three + (name == "fcproj" ? pre_gelu : 0), flops);
        // The first of two micro-steps writes the gradient, and the second reads and writes it.
        add(name + " dW" + dims, m.calls, (N * m.in + N * m.out) * e, flops);
        rows[name + " dW" + dims].bytes += static_cast<double>(m.calls / 2 * (4 + 8) * m.in * m.out);
    }
    const TensorTable table = table_of(config);
    size_t all = 0, zeroed = 0;
    for (const FlatRange& s : table.ranges()) all += s.elements, zeroed += s.from_matmul ? 0 : s.elements;
    add("zero gradientsnull", 1, 4 * zeroed);
    add("gradient normnull", 1, 4 * all);
    add("optimizernull", 1, (4 + 8 + 8 + 8 + (rounded ? 2 : 0)) * all);  // gradient, master, m, v
    add("sum of normsnull", 1, 0);
    add("clip and countnull", 1, 0);
    add("flags to the devicenull", 1, 0);
    add("loss, norm and flags to the hostnull", 1, 0);
    add("learning rate to the devicenull", 1, 0);
    return rows;
}

template <class Type>
void expect_counts() {
    const Measured measured = measure<Type>(2);
    const std::map<std::string, Expected> expected =
        count_by_hand(sizeof(Type), !std::is_same_v<Type, float>);
    for (const auto& [name, row] : measured.rows) EXPECT_TRUE(expected.contains(name)) << name;
    for (const auto& [name, count] : expected) {
        ASSERT_TRUE(measured.rows.contains(name)) << name;
        const auto& row = measured.rows.at(name);
        // There is one call per range of the flat buffer.
        const bool by_range =
            name == "zero gradientsnull" || name == "gradient normnull" || name == "optimizernull";
        EXPECT_TRUE(by_range || row["calls"] == count.calls) << name << ": " << row["calls"];
        EXPECT_EQ(row["bytes"], count.bytes) << name;
        EXPECT_EQ(row["flops"], count.flops) << name;
    }
}

TEST(Profile, BytesAndOperationsAreThoseCountedByHand) { expect_counts<float>(); }
TEST(Profile, BytesAndOperationsInBf16) { expect_counts<bfloat16>(); }

// Recomputation is an operation of its own, or more calls of one.
TEST(Profile, RecomputedOperationsAreSeen) {
    const Measured gelu = measure<float>(1, {.recompute = Recompute::activation}),
                   block = measure<float>(1, {.recompute = Recompute::block});
    EXPECT_EQ(gelu.rows.at("GELU againnull")["calls"], micro_steps * L);
    EXPECT_EQ(block.rows.at("layernormnull")["calls"], micro_steps * (1 + L));
    EXPECT_EQ(block.rows.at("attentionnull")["calls"], 2 * micro_steps * L);
    EXPECT_EQ(block.rows.at("fcproj[57,192,48]")["calls"], micro_steps * L);
}

// Only a few function calls lie between the operations. Other work of the machine may interfere, so the
// best of three counts.
TEST(Profile, TheOperationsAddUpToTheStep) {
    double best = 0;
    for (int attempt = 0; attempt < 3 && best < 0.9; attempt++) {
        const Measured measured = measure<float>(5);
        double sum = 0;
        for (const auto& [name, row] : measured.rows) {
            EXPECT_GT(row["ms"].get<double>(), 0) << name;
            sum += row["ms"].get<double>();
        }
        EXPECT_NEAR(sum, measured.report["operations_ms"].get<double>(), 1e-9);
        const double share = sum / measured.report["step_ms"].get<double>();
        EXPECT_LE(share, 1.001);  // events on a GPU resolve half a microsecond
        best = std::max(best, share);
    }
    EXPECT_GE(best, 0.9);
}

TEST(Profile, NothingIsMeasuredUnasked) {
    const Measured measured = measure<float>(0);
    EXPECT_TRUE(measured.rows.empty());
}

TEST(Profile, TheRateIsTheOneNearerToItsPeak) {
    if (simt::is_gpu()) GTEST_SKIP() << "sleeping is no work of a GPU, so every rate would exceed its peak";
    Profile profile;
    profile.measure(1);
    for (int step = 1; step <= Profile::warm_up + 1; step++) {
        profile.begin_step();
        for (int call = 0; call < 2; call++) {
            profile.begin("moves", {.bytes = 4'000'000, .flops = 1'000'000}, nullptr);
            std::this_thread::sleep_for(std::chrono::milliseconds(3));
            profile.begin("multiplies", {.bytes = 1'000'000, .flops = 6'000'000, .product = {10, 20, 30}},
                          nullptr);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            profile.begin("neither", {}, nullptr);
            profile.end(nullptr);
            std::this_thread::sleep_for(std::chrono::milliseconds(25));  // belongs to no operation
        }
        EXPECT_EQ(profile.end_step(20), step == Profile::warm_up + 1);
    }
    const nlohmann::ordered_json report = profile.report({.bytes_per_second = 8e9, .flops_per_second = 3e9}),
                                 &rows = report["operations"];
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[0]["rate"], "bytes");
    EXPECT_EQ(rows[1]["rate"], "flops");
    EXPECT_TRUE(rows[2]["rate"].is_null() && rows[2]["share_of_peak"].is_null() &&
                rows[2]["shape"].is_null());
    EXPECT_EQ(rows[1]["shape"], nlohmann::ordered_json({10, 20, 30}));
    EXPECT_EQ(rows[0]["calls"], 2);
    EXPECT_GE(rows[0]["ms"], 6.0);
    EXPECT_GE(rows[1]["ms"], 4.0);
    EXPECT_LT(rows[2]["ms"], 50.0);
    const double seconds = rows[0]["ms"].get<double>() * 1e-3;
    EXPECT_DOUBLE_EQ(rows[0]["share_of_peak"].get<double>(), 8e6 / seconds / 8e9);
    EXPECT_DOUBLE_EQ(rows[0]["share"].get<double>(), seconds / 20e-3);

    const std::string table = profile_table(report);
    EXPECT_FALSE(says(table, "caches"));
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2 + 3 + 2) << table;
    for (const char* part : {"mean of 1 steps", "copy 8.0 GB/s", "matrix product 3.0 GFLOP/s", "10 x 20 x 30",
                             "all operations", "between operations", "20.000"})
        EXPECT_TRUE(says(table, part)) << part;
}

// Peaks that were measured while other programs were busy, or below the speed of the caches. A sleep may end
// 20 ms late on a busy machine, so the rates lie far apart.
TEST(Profile, NoOperationIsFasterThanAPeak) {
    Profile profile;
    profile.measure(1);
    for (int step = 1; step <= Profile::warm_up + 1; step++) {
        profile.begin_step();
        profile.begin("in caches", {.bytes = 60 << 20}, nullptr);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        profile.begin("in memory", {.bytes = 80 << 20}, nullptr);
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        profile.begin("product", {.bytes = 1, .flops = 90'000'000, .product = {10, 20, 30}}, nullptr);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        profile.end(nullptr);
        profile.end_step(100);
    }
    const nlohmann::ordered_json report = profile.report({.bytes_per_second = 5e8, .flops_per_second = 3e9}),
                                 &rows = report["operations"];
    ASSERT_EQ(rows.size(), 3u);
    const auto per_second = [&](size_t row, const char* amount) {
        return rows[row][amount].get<double>() / (rows[row]["ms"].get<double>() * 1e-3);
    };
    if (simt::is_gpu()) return;  // where sleeping is not work
    EXPECT_DOUBLE_EQ(report["peak_bytes_per_second"].get<double>(), per_second(1, "bytes"));
    EXPECT_DOUBLE_EQ(report["peak_flops_per_second"].get<double>(), per_second(2, "flops"));
    EXPECT_DOUBLE_EQ(rows[1]["share_of_peak"].get<double>(), 1);
    EXPECT_DOUBLE_EQ(rows[2]["share_of_peak"].get<double>(), 1);
    // It is not known where the first one finds its bytes; if it was faster than memory, it has no share.
    EXPECT_EQ(rows[0]["rate"], "bytes");
    EXPECT_EQ(rows[0]["share_of_peak"].is_null(), per_second(0, "bytes") > per_second(1, "bytes")) << report;
    EXPECT_TRUE(rows[0]["share_of_peak"].is_null()) << report;
    EXPECT_TRUE(says(profile_table(report), "caches"));
}

// Both ways of storing, in every part of the array; the number of elements is a multiple of no block.
TEST(Profile, TheCopiesThatItsPeakIsMeasuredWithCopyEveryElement) {
    constexpr size_t count = 32 * 1237, around = 32;
    std::vector<float> from(count);
    std::iota(from.begin(), from.end(), 1.0f);
    simt::DeviceBuffer<float> source(count), to(count + around);
    simt::copy_to_device(source.data(), from.data(), source.bytes(), nullptr);
    for (const auto copied : {copy<CopyStores::plain>, copy<CopyStores::around_caches>}) {
        simt::fill_zero(to.data(), to.bytes(), nullptr);
        copied(to.data(), source.data(), count, nullptr);
        const std::vector<float> read = download(to);
        EXPECT_TRUE(std::equal(from.begin(), from.end(), read.begin()));
        EXPECT_TRUE(std::all_of(read.begin() + count, read.end(), [](float x) { return x == 0; }));
    }
}

}  // namespace
