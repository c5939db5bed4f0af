// Muon: its kernels against double precision; twenty updates of a matrix, and the first of a model, against
// numbers that the same formulas give in double precision (dev/reference_muon.py, where they are shown to be
// torch.optim.Muon's); what the groups of a model are updated by; steps that must change nothing; owners.

#include "kernels/gemm/orthogonalise.h"
#include "kernels/global_norm.cuh"
#include "kernels/muon.cuh"
#include "model.cuh"

namespace {

constexpr double lr = 0.05, decay = 0.1, momentum = 0.95;  // as in the dump

simt::DeviceBuffer<OptimizerState> state_of(float scale) {
    OptimizerState value{};
    value.lr = lr, value.scale = scale;
    simt::DeviceBuffer<OptimizerState> state(1);
    simt::copy_to_device(state.data(), &value, sizeof(value), nullptr);
    simt::stream_synchronize(nullptr);
    return state;
}

// The gradients that dev/reference_muon.py has; steps count from 1.
std::vector<float> gradient(uint64_t step, size_t elements) {
    std::vector<float> values(elements);
    for (size_t i = 0; i < elements; i++) {
        auto x = static_cast<uint32_t>((i + step * 1000003) * 2654435761);
        x = (x ^ (x >> 15)) * 2246822519u;
        x = (x ^ (x >> 13)) * 3266489917u;
        values[i] = static_cast<float>((x ^ (x >> 16)) >> 8) / 0x1p24f - 0.5f;
    }
    return values;
}

template <class W>
class Muon : public testing::Test {};
using Widths = simt::TestWidths<testing::Types, 32>;
TYPED_TEST_SUITE(Muon, Widths);

template <class W, class T>
void test_kernels(size_t n, size_t offset, float scale) {
    SCOPED_TRACE(testing::Message() << "n = " << n << ", offset = " << offset << ", scale = " << scale);
    const size_t count = n + offset;
    const auto g = random_values<float>(count, 1), m = random_values<float>(count, 2),
               p = random_values<float>(count, 3);
    const auto grads = upload<float>(g), mean = upload<float>(m), master = upload<float>(p),
               u = poisoned<float>(count), norm = upload<float>(std::vector<float>{9.0f});
    const auto x = poisoned<T>(count), params = poisoned<T>(count);
    const auto state = state_of(scale);
    muon_momentum<W>(u.data() + offset, mean.data() + offset, grads.data() + offset, n, momentum,
                     state.data(), nullptr);
    muon_normalise<W>(x.data() + offset, u.data() + offset, n, norm.data(), nullptr);
    muon_update<W>(params.data() + offset, master.data() + offset, x.data() + offset, n, 1.5, decay,
                   state.data(), nullptr);

    const auto x_ = download(x), means = download(mean), masters = download(master),
               copies = download(params);
    std::vector<Bounded> mean_expected = exact(m), x_expected(count), p_expected = exact(p);
    for (size_t i = offset; i < count; i++) {
        const Bounded scaled = Bounded(scale) * Bounded(g[i]);
        mean_expected[i] = momentum * Bounded(m[i]) + (1 - momentum) * scaled;
        x_expected[i] = (momentum * mean_expected[i] + (1 - momentum) * scaled) / 3.0;
        p_expected[i] = (1 - lr * decay) * Bounded(p[i]) - lr * 1.5 * Bounded(x_[i]);
    }
    if (scale == 0) {  // a skipped step: nothing changes, and what the products will read is written
        EXPECT_EQ(means, m);
        EXPECT_EQ(masters, p);
        for (size_t i = offset; i < count; i++) ASSERT_EQ(x_[i], 0.0f);
        return;
    }
    expect_close(mean, mean_expected);
    expect_close(master, p_expected);
    for (size_t i = offset; i < count; i++) {
        ASSERT_NEAR(x_[i], x_expected[i].value, 8 * epsilon<T> * x_expected[i].size());
        ASSERT_EQ(copies[i], static_cast<float>(T(masters[i]))) << i;
    }
    for (size_t i = 0; i < offset; i++) EXPECT_TRUE(std::isnan(copies[i])) << "wrote in front of the range";
}
TYPED_TEST(Muon, KernelsMatchDoublePrecision) {
    for (const size_t n : {1, 8, 33, 3001}) {
        for (const size_t offset : {0, 1}) {
            for (const float scale : {0.25f, 0.0f}) {
                test_kernels<TypeParam, float>(n, offset, scale);
                test_kernels<TypeParam, bfloat16>(n, offset, scale);
            }
        }
    }
}

TEST(MuonScale, GrowsWithTheShape) {
    EXPECT_EQ(muon_factor(MuonScale::original, 48, 192), 1);
    EXPECT_EQ(muon_factor(MuonScale::original, 192, 48), 2);
    EXPECT_DOUBLE_EQ(muon_factor(MuonScale::match_rms, 25, 100), 2);
    EXPECT_DOUBLE_EQ(muon_factor(MuonScale::match_rms, 100, 25), 2);
}

// An update needs this memory besides the matrix.
template <class T>
struct Scratch {
    const size_t rows, columns, n = std::min(rows, columns);
    simt::DeviceBuffer<float> u = poisoned<float>(rows * columns),
                              partial = poisoned<float>(global_norm_scratch(rows * columns)),
                              norm = poisoned<float>(1);
    simt::DeviceBuffer<T> x = poisoned<T>(rows * columns), other = poisoned<T>(rows * columns),
                          gram = poisoned<T>(n * n), polynomial = poisoned<T>(n * n);
    simt::DeviceBuffer<char> workspace = poisoned<char>(orthogonalise_workspace_bytes<T>(rows, columns));
    Gemm gemm{{}};

    Scratch(size_t rows, size_t columns) : rows(rows), columns(columns) {
        gemm.use_workspace(workspace.data(), workspace.bytes());
    }
    // From u to the orthogonal matrix.
    const T* direction() {
        global_norm_squared(norm.data(), partial.data(), u.data(), rows * columns, nullptr);
        muon_normalise(x.data(), u.data(), rows * columns, norm.data(), nullptr);
        return orthogonalise<T>(gemm, x.data(), {other.data(), gram.data(), polynomial.data()}, 1, rows,
                                columns, nullptr);
    }
};

double distance(const std::vector<float>& a, const std::vector<float>& b, const std::vector<float>& from) {
    double difference = 0, moved = 0;
    for (size_t i = 0; i < a.size(); i++) {
        const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]),
                     m = static_cast<double>(b[i]) - static_cast<double>(from[i]);
        difference += d * d, moved += m * m;
    }
    return std::sqrt(difference / moved);
}

// fp32: 2 roundings that the least singular values amplify by up to 485. bf16: a tenth of what the update of
// an ill-conditioned matrix may be off by (TheFirstStepOfAModel..), since these gradients are random.
template <class T>
void test_twenty_updates(size_t rows, size_t columns) {
    const std::string name = fmt::format("{}x{}", rows, columns);
    SCOPED_TRACE(name);
    const SafetensorsFile dump = reference("muon");
    const size_t n = rows * columns;
    const auto before = dump.floats(name + ".weight");
    const auto master = upload<float>(before), mean = upload<float>(std::vector<float>(n));
    const auto copy = poisoned<T>(n);
    T* const params = std::is_same_v<T, float> ? reinterpret_cast<T*>(master.data()) : copy.data();
    Scratch<T> scratch(rows, columns);
    const auto state = state_of(1);
    for (uint64_t step = 1; step <= 20; step++) {
        const auto grads = upload<float>(gradient(step, n));
        muon_momentum(scratch.u.data(), mean.data(), grads.data(), n, momentum, state.data(), nullptr);
        const T* const x = scratch.direction();
        muon_update(params, master.data(), x, n, muon_factor(MuonScale::original, rows, columns), decay,
                    state.data(), nullptr);
        const std::string after = fmt::format("{}.after.{}", name, step);
        if (!dump.contains(after)) continue;
        EXPECT_LE(distance(download(master), dump.floats(after), before),
                  (std::is_same_v<T, float> ? 6e-5 : 2e-2))
            << "step " << step;
    }
    EXPECT_LE(relative_error(download(mean), dump.floats(name + ".momentum_buffer")), 1e-6);
}
TEST(MuonUpdate, TwentyOfAMatrixMatchDoublePrecision) {
    constexpr size_t shapes[][2] = {{48, 48}, {96, 48}, {48, 96}, {1, 48}};
    for (const auto& [rows, columns] : shapes) {
        test_twenty_updates<float>(rows, columns);
        test_twenty_updates<bfloat16>(rows, columns);
    }
}

// The largest singular value of a (rows, columns) matrix, by the power iteration.
double largest_singular_value(const double* x, size_t rows, size_t columns) {
    std::vector<double> v(columns, 1.0), w(rows);
    double size = 0;
    for (int i = 0; i < 300; i++) {
        for (size_t r = 0; r < rows; r++) {
            w[r] = 0;
            for (size_t c = 0; c < columns; c++) w[r] += x[r * columns + c] * v[c];
        }
        double squares = 0;
        for (size_t c = 0; c < columns; c++) {
            v[c] = 0;
            for (size_t r = 0; r < rows; r++) v[c] += x[r * columns + c] * w[r];
            squares += v[c] * v[c];
        }
        size = std::sqrt(std::sqrt(squares));
        for (double& value : v) value /= std::sqrt(squares);
    }
    return size;
}

OptimizerOptions muon_options() {
    OptimizerOptions options = reference_adamw;
    options.lr = 0.1, options.weight_decay = 0, options.momentum = momentum;
    options.rates = {1, 0.01, 0.02, 0.03};
    return options;
}

// orthogonalise() in plain loops: x (rows, columns) divided by its norm, then five times
// a x + (b x x^T + c (x x^T)^2) x.
std::vector<double> plain_orthogonal(const std::vector<float>& matrix, size_t rows, size_t columns) {
    std::vector<double> x(matrix.begin(), matrix.end()), gram(rows * rows), square(rows * rows);
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (double& value : x) value /= std::sqrt(squares);
    for (int step = 0; step < 5; step++) {
        for (size_t i = 0; i < rows * rows; i++) {
            gram[i] = 0;
            for (size_t k = 0; k < columns; k++)
                gram[i] += x[i / rows * columns + k] * x[i % rows * columns + k];
        }
        for (size_t i = 0; i < rows * rows; i++) {
            square[i] = 0;
            for (size_t k = 0; k < rows; k++)
                square[i] += gram[i / rows * rows + k] * gram[k * rows + i % rows];
        }
        const std::vector<double> before = x;
        for (size_t i = 0; i < x.size(); i++) {
            x[i] = 3.4445 * before[i];
            for (size_t k = 0; k < rows; k++)
                x[i] += (-4.775 * gram[i / columns * rows + k] + 2.0315 * square[i / columns * rows + k]) *
                        before[k * columns + i % columns];
        }
    }
    return x;
}

// Returns plain_orthogonal() of each of a tensor's matrices, one after the other.
std::vector<double> plain_directions(const Tensor& t, const std::vector<float>& gradient) {
    const size_t n = t.rows_of_matrix() * t.shape[1];
    std::vector<double> all;
    for (size_t at = 0; at < gradient.size(); at += n) {
        const auto from = gradient.begin() + static_cast<std::ptrdiff_t>(at);
        const auto x =
            plain_orthogonal({from, from + static_cast<std::ptrdiff_t>(n)}, t.rows_of_matrix(), t.shape[1]);
        all.insert(all.end(), x.begin(), x.end());
    }
    return all;
}

TEST(MuonUpdate, ThePlainOneIsPythons) {
    const SafetensorsFile dump = reference("muon"), model = reference("model");
    const TensorTable table = table_of(reference_config, {1, true});
    size_t compared = 0;
    for (const Tensor& t : table.tensors()) {
        if (!dump.contains("model." + t.name)) continue;
        compared++;
        const std::vector<double> x = plain_directions(t, model.floats("grad." + t.name));
        EXPECT_LE(relative_error(x, dump.floats("model." + t.name)), 1e-6) << t.name;
    }
    EXPECT_EQ(compared, 4u);
}

// The gradients of a model are ill-conditioned: the update amplifies a relative error of them by up to 54,
// and directions without gradient stay near 0. What is no matrix makes AdamW's first step.
template <class T>
void test_first_step(MuonScale muon_scale, double weight_decay) {
    SCOPED_TRACE(weight_decay);
    const SafetensorsFile weights = reference("model");
    const auto model = reference_model<T>(weights, {.optimizer = Optimizer::muon});
    const auto before = parameters_of(*model);
    OptimizerOptions options = muon_options();
    options.muon_scale = muon_scale, options.weight_decay = weight_decay, options.momentum = 0.9;
    const StepResult result = train_step(*model, reference_batch(weights), options);
    const double scale = std::min(1.0, options.clip / (static_cast<double>(result.grad_norm) + 1e-6));
    const auto after = parameters_of(*model), grads = gradients_of(*model);
    std::vector<float> mean(model->table().elements());
    model->read_optimizer("exp_avg", mean.data());
    for (TensorId id = 0; id < before.size(); id++) {
        const Tensor& t = model->table()[id];
        SCOPED_TRACE(t.name);
        std::vector<double> moved(t.unpadded_elements), expected;
        const bool matrix = t.role == Role::matrix;
        const double factor = matrix ? muon_factor(muon_scale, t.rows_of_matrix(), t.shape[1]) : 1,
                     rate = options.lr * options.rate(t.role) * factor,
                     kept = matrix ? 1 - options.lr * weight_decay : 1;
        for (size_t i = 0; i < moved.size(); i++)
            moved[i] = (kept * static_cast<double>(before[id][i]) - static_cast<double>(after[id][i])) / rate;
        if (!matrix) {
            for (size_t i = 0; i < moved.size(); i++) {
                const double g = scale * static_cast<double>(grads[id][i]);
                EXPECT_NEAR(moved[i], g / (std::abs(g) + options.eps), 1e-3) << i;
            }
            continue;
        }
        expected = plain_directions(t, grads[id]);
        for (size_t i = 0; i < moved.size(); i++) {
            const double kept_of_gradient =
                (1 - options.momentum) * scale * static_cast<double>(grads[id][i]);
            EXPECT_NEAR(static_cast<double>(mean[t.offset + i]), kept_of_gradient,
                        1e-5 * std::abs(kept_of_gradient));
        }
        const size_t n = t.rows_of_matrix() * t.shape[1];
        for (size_t at = 0; at < moved.size(); at += n)
            EXPECT_LE(largest_singular_value(moved.data() + at, t.rows_of_matrix(), t.shape[1]), 1.3);
        double product = 0, own = 0, other = 0;
        for (size_t i = 0; i < moved.size(); i++)
            product += moved[i] * expected[i], own += moved[i] * moved[i], other += expected[i] * expected[i];
        EXPECT_GE(product / std::sqrt(own * other), 0.98);
        EXPECT_LE(relative_error(moved, expected), (std::is_same_v<T, float> ? 6e-5 : 0.2));
    }
}
TEST(MuonUpdate, TheFirstStepOfAModelOrthogonalisesMatricesAndMovesTheRestByTheirRates) {
    test_first_step<float>(MuonScale::original, 0);
    test_first_step<float>(MuonScale::match_rms, 0.1);
    test_first_step<bfloat16>(MuonScale::original, 0);
}

// Momentum advances once a step, however many micro-steps it has, and clipping is by the norm of all
// gradients.
TEST(MuonUpdate, MicroStepsMakeOneUpdate) {
    const SafetensorsFile weights = reference("model");
    const Trajectory batches;
    const auto whole = reference_model<float>(weights, {.optimizer = Optimizer::muon}),
               split = reference_model<float>(
                   weights, {.B = 1, .total_batch = reference_B * reference_T, .optimizer = Optimizer::muon});
    for (int step = 0; step < 5; step++) {
        const StepResult one = train_step(*whole, batches.at(step), muon_options());
        for (int micro = 0; micro < reference_B; micro++) {
            split->forward(sequences(batches.x, batches.y, reference_T, step * reference_B + micro, 1));
            split->backward(micro + 1 == reference_B);
        }
        const StepResult same = split->update(muon_options());
        EXPECT_NEAR(same.loss / one.loss, 1, 1e-5) << "step " << step;
        EXPECT_NEAR(same.grad_norm / one.grad_norm, 1, 1e-3) << "step " << step;
    }
    std::vector<float> a(whole->table().elements()), b(a.size());
    whole->read_optimizer("exp_avg", a.data());
    split->read_optimizer("exp_avg", b.data());
    EXPECT_LE(relative_error(b, a), 1e-4);
}

// Every float of the state: of matrices their momentum alone.
TEST(MuonUpdate, MatricesHaveHalfOfAdamWsState) {
    const auto state_bytes = [](Optimizer optimizer) {
        const Model<bfloat16> model(make_family<bfloat16>(reference_config),
                                    {.B = 1, .T = 8, .total_batch = 8, .optimizer = optimizer});
        return bytes_of(model.memory_plan(), "optimizer state (fp32)");
    };
    const TensorTable table = table_of(reference_config, {1, true});
    size_t matrices = 0;
    for (const Bucket& bucket : table.buckets())
        if (bucket.is_whole()) matrices += bucket.elements;
    EXPECT_GT(matrices, 0u);
    EXPECT_EQ(table.state_elements(0, false), table.elements());
    EXPECT_EQ(table.state_elements(1, false), table.elements() - matrices);
    const size_t saved = state_bytes(Optimizer::adamw) - state_bytes(Optimizer::muon);
    EXPECT_NEAR(static_cast<double>(saved), static_cast<double>(matrices * sizeof(float)), 4096);
}

// The state of a model after some steps continues in another one with the same bits.
TEST(MuonUpdate, StateGoesOnInAnotherModel) {
    const SafetensorsFile weights = reference("model");
    const Trajectory batches;
    const auto trained = reference_model<bfloat16>(weights, {.optimizer = Optimizer::muon}),
               fresh = reference_model<bfloat16>(weights, {.optimizer = Optimizer::muon});
    for (int s = 0; s < 3; s++) train_step(*trained, batches.at(s), muon_options());
    const TensorTable& table = trained->table();
    std::vector<float> host(table.elements());
    trained->read_masters(host.data());
    fresh->write_masters(host.data());
    for (const std::string& buffer : trained->optimizer_buffers()) {
        const size_t i = buffer == "exp_avg" ? 0 : 1;
        std::vector<float> kept(trained->state_elements(i));
        trained->read_optimizer(buffer, kept.data());
        for (const FlatRange& t : table.whole_tensors()) {
            if (i == 1 && table.updates_whole(table[t.tensor])) continue;
            std::copy_n(kept.begin() + static_cast<std::ptrdiff_t>(t.offset_in(i)), t.elements,
                        host.begin() + static_cast<std::ptrdiff_t>(t.offset));
        }
        fresh->write_optimizer(buffer, host.data());
    }
    fresh->set_optimizer_step(trained->optimizer_step());
    for (int s = 3; s < 5; s++) {
        EXPECT_EQ(train_step(*trained, batches.at(s), muon_options()).loss,
                  train_step(*fresh, batches.at(s), muon_options()).loss);
    }
    EXPECT_EQ(parameters_of(*fresh), parameters_of(*trained));
}

// Owners: 12 layers of 124M divide evenly among 8 processes, nearly so among 7, and leave 16 of 64 idle.
TEST(MuonOwners, HaveEvenLoads) {
    constexpr ModelConfig config{50257, 1024, 12, 12, 768};
    const auto most = [&](int processes) {
        const std::vector<double> loads = table_of(config, {processes, true}).loads_of_owners();
        double sum = 0;
        for (const double load : loads) sum += load;
        return *std::max_element(loads.begin(), loads.end()) * processes / sum;
    };
    EXPECT_DOUBLE_EQ(most(1), 1.0);
    EXPECT_DOUBLE_EQ(most(8), 1.0);
    EXPECT_LE(most(7), 1.05);
    const std::vector<double> loads = table_of(config, {64, true}).loads_of_owners();
    EXPECT_EQ(std::count(loads.begin(), loads.end(), 0.0), 16);
}

// Each element of each tensor is in the state of exactly one process, apart from others there.
TEST(MuonOwners, StatesOfProcessesPartitionTheTensors) {
    for (const int processes : {2, 3, 8, 64}) {
        SCOPED_TRACE(processes);
        const TensorTable table = table_of(reference_config, {processes, true});
        std::vector<int> kept(table.elements());
        for (int rank = 0; rank < processes; rank++) {
            std::vector<bool> used[2] = {std::vector<bool>(table.state_elements(0, true)),
                                         std::vector<bool>(table.state_elements(1, true))};
            for (const FlatRange& r : table.shard_of_tensors(rank)) {
                const bool whole = table.updates_whole(table[r.tensor]);
                if (whole) { EXPECT_EQ(r.elements, table[r.tensor].elements); }
                for (size_t i = 0; i < r.elements; i++) kept[r.offset + i]++;
                for (size_t buffer = 0; buffer < (whole ? 1 : 2); buffer++) {
                    for (size_t i = 0; i < r.elements; i++) {
                        ASSERT_LT(r.offset_in(buffer) + i, used[buffer].size());
                        ASSERT_FALSE(used[buffer][r.offset_in(buffer) + i]);
                        used[buffer][r.offset_in(buffer) + i] = true;
                    }
                }
            }
        }
        for (const Tensor& t : table.tensors())
            for (size_t i = 0; i < t.unpadded_elements; i++) ASSERT_EQ(kept[t.offset + i], 1) << t.name;
    }
}

}  // namespace
