// Training with several processes: the same as with one, however the work is split.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "../model.cuh"
#include "processes.h"

namespace {

constexpr int T = 16,
              samples = simt::checked ? 3 : 12;  // CMake runs checked builds with three processes only
constexpr OptimizerOptions adamw{
    .lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};

int world() { return communicator().size(); }

// Widths, vocabulary and number of parameters that are not divisible; every bucket has the padding that
// makes its parts equal in size.
constexpr ModelConfig odd{203, 24, 3, 3, 51};

// Sequences of a step that repeat themselves imperfectly: something to learn.
OwnedBatch batch_of(int step, int first, int count, const ModelConfig& config = odd) {
    std::vector<int> inputs, targets;
    for (int sample = first; sample < first + count; sample++) {
        std::mt19937 generator(static_cast<unsigned>(step * 1000 + sample));
        int token = static_cast<int>(generator() % 64);
        for (int t = 0; t < T; t++) {
            inputs.push_back(token);
            token = generator() % 8 == 0 ? static_cast<int>(generator() % 64) : (token * 5 + 3) % config.V;
            targets.push_back(token);
        }
    }
    return OwnedBatch(count, T, inputs, targets);
}

struct Trained {
    std::vector<StepResult> results;
    std::vector<float> masters;
};

OptimizerOptions muon() {
    OptimizerOptions options = adamw;
    options.lr = 0.02, options.momentum = 0.95;
    options.rates = {1, 0.1, 0.15, 0.2};
    return options;
}

template <class Type>
Trained train(ModelOptions options, int steps, Communicator& all,
              const std::function<void(Model<Type>&)>& after_step = {}) {
    options.T = T;
    options.total_batch = samples * T;
    options.seed = 7;
    options.rank = all.rank();
    options.world_size = all.size();
    Model<Type> model(make_family<Type>(odd), options);
    model.allocate(&all);
    Trained trained;
    const int micro_steps = samples / (options.B * all.size());
    for (int step = 0; step < steps; step++) {
        for (int micro = 0; micro < micro_steps; micro++) {
            model.forward(batch_of(step, (micro * all.size() + all.rank()) * options.B, options.B));
            model.backward(micro + 1 == micro_steps);
        }
        trained.results.push_back(model.update(options.optimizer == Optimizer::muon ? muon() : adamw));
        if (after_step) after_step(model);
    }
    trained.masters.resize(model.table().elements());
    model.read_masters(trained.masters.data());
    return trained;
}

template <class Type>
class DataParallel : public testing::Test {};
using Types = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(DataParallel, Types);

constexpr int steps = simt::checked ? 2 : 50;

// The sums are added in another order: fp32 differs in its last bits; in bf16 the roundings of
// activations' gradients differ.
template <class Type>
void expect_near(const std::vector<StepResult>& a, const std::vector<StepResult>& b) {
    const bool fp32 = std::is_same_v<Type, float>;
    double loss = 0, norm = 0;
    for (size_t s = 0; s < a.size(); s++) {
        loss = std::max(loss, std::abs(static_cast<double>(a[s].loss) / static_cast<double>(b[s].loss) - 1));
        norm = std::max(
            norm, std::abs(static_cast<double>(a[s].grad_norm) / static_cast<double>(b[s].grad_norm) - 1));
    }
    EXPECT_LE(loss, fp32 ? 1e-5 : 2e-3);
    EXPECT_LE(norm, fp32 ? 1e-3 : 2e-2);
}

constexpr Optimizer optimizers[] = {Optimizer::adamw, Optimizer::muon};

// With Muon no bound is wider: a direction in which the update amplifies rounding weighs little in the loss.
TYPED_TEST(DataParallel, LossAndNormAreThoseOfOneProcess) {
    SingleProcess alone;
    for (const Optimizer optimizer : optimizers) {
        const std::vector<StepResult> whole =
            train<TypeParam>({.B = samples, .optimizer = optimizer}, steps, alone).results;
        for (const int micro_steps : {1, 3}) {
            if (samples % (micro_steps * world()) != 0) continue;
            for (const bool zero : {false, true}) {
                SCOPED_TRACE(fmt::format("optimizer {}, {} micro-steps, ZeRO {}", static_cast<int>(optimizer),
                                         micro_steps, zero));
                const ModelOptions options{
                    .B = samples / (micro_steps * world()), .optimizer = optimizer, .zero = zero};
                expect_near<TypeParam>(train<TypeParam>(options, steps, communicator()).results, whole);
            }
        }
    }
}

TYPED_TEST(DataParallel, Bf16OnTheWayIsNearToo) {
    SingleProcess alone;
    const std::vector<StepResult> whole = train<TypeParam>({.B = samples}, steps, alone).results;
    for (const bool zero : {false, true})
        expect_near<bfloat16>(train<TypeParam>({.B = samples / world(), .zero = zero, .reduce_bf16 = true},
                                               steps, communicator())
                                  .results,
                              whole);
}

// all_reduce adds up as reduce_scatter does, each process computes the norm of its part, AdamW is
// elementwise, and a matrix's owner has all of its gradient.
TYPED_TEST(DataParallel, ShardedOptimizerGivesTheSameBits) {
    for (const Optimizer optimizer : optimizers) {
        SCOPED_TRACE(static_cast<int>(optimizer));
        const ModelOptions options{.B = samples / world(), .optimizer = optimizer},
            in_parts{.B = samples / world(), .optimizer = optimizer, .zero = true};
        const Trained whole = train<TypeParam>(options, 5, communicator()),
                      sharded = train<TypeParam>(in_parts, 5, communicator());
        for (size_t s = 0; s < whole.results.size(); s++) {
            EXPECT_EQ(whole.results[s].loss, sharded.results[s].loss);
            EXPECT_EQ(whole.results[s].grad_norm, sharded.results[s].grad_norm);
        }
        const TensorTable table = table_of(odd, {world(), optimizer == Optimizer::muon});
        for (const Tensor& t : table.tensors())
            EXPECT_EQ(
                std::memcmp(&whole.masters[t.offset], &sharded.masters[t.offset], t.elements * sizeof(float)),
                0)
                << t.name;
    }
}

TYPED_TEST(DataParallel, ParametersAreTheSameBitsInAllProcessesAtEveryStep) {
    for (const Optimizer optimizer : optimizers) {
        for (const bool zero : {false, true}) {
            train<TypeParam>({.B = samples / world(), .optimizer = optimizer, .zero = zero}, 4,
                             communicator(), [](Model<TypeParam>& model) {
                                 const std::string own = std::to_string(model.checksum());
                                 for (const std::string& other : gather_texts(communicator(), own))
                                     EXPECT_EQ(other, own);
                             });
        }
    }
}

// A process generates as soon as its update has begun, while others still send their parameters.
TYPED_TEST(DataParallel, TextsAreThoseOfAllParametersUnderZero) {
    std::vector<std::vector<float>> texts[2];
    for (const bool zero : {false, true}) {
        train<TypeParam>({.B = samples / world(), .generated_tokens = 4, .zero = zero}, 2, communicator(),
                         [&](Model<TypeParam>& model) {
                             model.decoder().prefill({1, 2, 3});
                             texts[zero].push_back(model.decoder().logits());
                         });
    }
    EXPECT_EQ(texts[0], texts[1]);
}

// A checksum that no difference changes would prove nothing.
TYPED_TEST(DataParallel, ChecksumSeesOneBit) {
    Model<TypeParam> model(
        make_family<TypeParam>(odd),
        {.B = 1, .T = T, .total_batch = T, .rank = communicator().rank(), .world_size = world()});
    model.allocate(&communicator());
    const uint64_t before = model.checksum();
    const Tensor& bias = model.table().named("transformer.h.1.mlp.c_fc.bias");
    std::vector<float> values = model.parameter(bias);
    values[17] += 0x1p-6f;
    model.set_parameter(bias, values);
    EXPECT_NE(model.checksum(), before);
    const uint64_t changed = model.checksum();
    std::swap(values[17], values[18]);
    model.set_parameter(bias, values);
    EXPECT_NE(model.checksum(), changed);
    // The last bit of the last parameter, in the smallest step that its type has.
    const Tensor& last = model.table().tensors().back();
    std::vector<float> end = model.parameter(last);
    const uint64_t swapped = model.checksum();
    end.back() += std::is_same_v<TypeParam, float> ? 0x1p-149f : 0x1p-133f;
    model.set_parameter(last, end);
    EXPECT_NE(model.checksum(), swapped);
}

// Gradients are sent in the last micro-step only, each bucket once.
template <class Type>
void expect_buckets_reduced_once(Optimizer optimizer) {
    for (const bool zero : {false, true}) {
        CountingCommunicator counting(communicator());
        const int micro_steps = 4;
        Model<Type> model(make_family<Type>(odd),
                          {.B = 1,
                           .T = T,
                           .total_batch = static_cast<size_t>(micro_steps * world()) * T,
                           .optimizer = optimizer,
                           .rank = communicator().rank(),
                           .world_size = world(),
                           .zero = zero});
        model.allocate(&counting);
        counting.begun.clear();
        for (int micro = 0; micro < micro_steps; micro++) {
            EXPECT_EQ(counting.begun.size(), 0u) << micro;
            model.forward(batch_of(0, micro * world() + communicator().rank(), 1));
            model.backward(micro + 1 == micro_steps);
        }
        const std::vector<Bucket>& buckets = model.table().buckets();
        EXPECT_EQ(counting.begun.size(), buckets.size());
        size_t elements = 0, in_parts = 0;
        for (const Collective& collective : counting.begun) {
            EXPECT_TRUE(collective.kind == Collective::all_reduce ||
                        (zero && collective.kind == Collective::reduce_scatter));
            EXPECT_EQ(collective.element, Collective::fp32);
            elements += collective.count;
            if (collective.kind == Collective::reduce_scatter) in_parts += collective.count;
        }
        // a matrix that one process updates is summed whole, for its owner
        EXPECT_EQ(in_parts, zero ? model.table().state_elements(1, false) : 0);
        EXPECT_EQ(elements, model.table().elements());
        model.update(optimizer == Optimizer::muon ? muon() : adamw);
        // Besides gradients and, with ZeRO-1, parameters a step sends the sums of loss, norm and flags.
        const auto sent = [](Collective::Kind kind, size_t count, Collective::Element element) {
            return Collective{kind, nullptr, count, element}.bytes_sent(world());
        };
        using enum Collective::Kind;
        size_t bytes = sent(all_reduce, sizeof(StepSums) / sizeof(float), Collective::fp32);
        for (const Bucket& b : buckets) {
            const bool divided = zero && !b.is_whole();
            bytes += sent(divided ? reduce_scatter : all_reduce, b.elements, Collective::fp32);
            if (zero)
                bytes += sent(divided ? all_gather : broadcast, b.elements,
                              std::is_same_v<Type, float> ? Collective::fp32 : Collective::bf16);
        }
        EXPECT_EQ(counting.bytes_sent(), bytes);
        model.read_masters(nullptr);
    }
}
TYPED_TEST(DataParallel, EachBucketIsReducedOnceInTheLastMicroStep) {
    for (const Optimizer optimizer : optimizers) expect_buckets_reduced_once<TypeParam>(optimizer);
}

TYPED_TEST(DataParallel, ShardedOptimizerStateIsAnNthOfTheWhole) {
    const auto plan = [](bool zero) {
        return Model<TypeParam>(make_family<TypeParam>(odd), {.B = 1,
                                                              .T = T,
                                                              .total_batch = T,
                                                              .rank = communicator().rank(),
                                                              .world_size = world(),
                                                              .zero = zero})
            .memory_plan();
    };
    // Besides the state there are its count of steps, and the alignment gaps of an arena.
    const size_t rest = 2048, N = static_cast<size_t>(world());
    for (const std::string name : {"optimizer", "master"}) {
        const size_t whole = bytes_of(plan(false), name), shard = bytes_of(plan(true), name);
        EXPECT_LE(shard, whole / N + rest) << name;
        EXPECT_GE(shard + rest, whole / N) << name;
    }
}

// Bytes that this process holds of the device's memory (CPU: of the machine's), as the system counts them.
size_t resident_bytes() {
    if (simt::is_gpu()) {
        const simt::DeviceInfo device = simt::device_info();
        return device.total_memory - device.free_memory;
    }
    size_t program = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> program >> resident;
    return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TYPED_TEST(DataParallel, ShardedOptimizerStateTakesAnNthOfTheMemory) {
    if (simt::checked) GTEST_SKIP() << "AddressSanitizer keeps freed memory in use";
    // large compared with the pages of 2 MiB to which each allocation is rounded up
    constexpr ModelConfig config{1000, 16, 6, 4, 512};
    const auto held = [&](bool zero) {
        const size_t before = resident_bytes();
        Model<TypeParam> model(make_family<TypeParam>(config),
                               {.B = 1,
                                .T = T,
                                .total_batch = static_cast<size_t>(world()) * T,
                                .rank = communicator().rank(),
                                .world_size = world(),
                                .zero = zero});
        model.allocate(&communicator());
        model.forward(batch_of(0, communicator().rank(), 1, config));
        model.backward();
        model.update(adamw);
        return static_cast<double>(resident_bytes() - before);
    };
    held(true);  // libraries keep some memory
    const double whole = held(false), sharded = held(true);
    // the moments, and the masters beside bf16
    const size_t state = std::is_same_v<TypeParam, float> ? 2 : 3;
    const double bytes = static_cast<double>(state * table_of(config, world()).elements() * sizeof(float));
    EXPECT_NEAR((whole - sharded) / bytes, 1 - 1.0 / world(), 0.15) << whole << " bytes, sharded " << sharded;
}

// Sleeps as long as a slow network would take, and counts that time. Like a stream of its own, it sleeps
// while the others compute.
class SlowCommunicator : public Communicator {
public:
    SlowCommunicator(Communicator& inner, double seconds_a_byte)
        : Communicator(inner.process()),
          inner_(inner),
          seconds_a_byte_(seconds_a_byte),
          ready_(Clock::now()) {}
    Ticket begin(const Collective& collective, stream_t stream) override {
        ready_ = std::max(ready_, Clock::now()) +
                 std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                     seconds_a_byte_ * static_cast<double>(collective.bytes())));
        const Ticket ticket = inner_.begin(collective, stream);
        ready_at_.push_back({ticket, ready_});
        return ticket;
    }
    void wait(Ticket ticket, stream_t stream) override {
        inner_.wait(ticket, stream);
        for (const auto& [begun, ready] : ready_at_) {
            if (begun == ticket) std::this_thread::sleep_until(ready);
        }
    }
    void abort_operations() override { inner_.abort_operations(); }

protected:
    void end_others(int exit_code) override { inner_.abort(exit_code); }

private:
    using Clock = std::chrono::steady_clock;
    Communicator& inner_;
    const double seconds_a_byte_;
    Clock::time_point ready_;
    std::vector<std::pair<Ticket, Clock::time_point>> ready_at_;
};

// A network that needs half the time of the backward pass for a step's gradients is hidden behind it, but for
// the embeddings, which are complete only at its end.
TEST(DataParallelSpeed, ReductionOverlapsBackward) {
    if (simt::checked) GTEST_SKIP() << "times are not measured in checked builds";
    if (static_cast<unsigned>(world()) > std::thread::hardware_concurrency())
        GTEST_SKIP() << "fewer cores than processes: these wait for each other";
    constexpr ModelConfig config{1024, 64, 12, 4, 256};
    const int B = 8, sequence = 64;
    std::vector<int> tokens(static_cast<size_t>(B * sequence));
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<int>(i * 7 % 1000);
    const OwnedBatch batch(B, sequence, tokens, tokens);
    using Clock = std::chrono::steady_clock;
    const auto milliseconds = [](Clock::duration d) {
        return std::chrono::duration<double, std::milli>(d).count();
    };
    struct Timed {
        explicit Timed(Communicator& all, const ModelConfig& config, ModelOptions options)
            : model(make_family<float>(config), options) {
            model.allocate(&all);
        }
        Model<float> model;
        // milliseconds; the best of some steps, because other programs can only slow a step down
        double backward = 1e9, whole = 1e9;
    };
    const ModelOptions options{.B = B,
                               .T = sequence,
                               .total_batch = static_cast<size_t>(B * sequence * world()),
                               .rank = communicator().rank(),
                               .world_size = world()};
    const auto take_step = [&](Timed& timed) {
        const Clock::time_point start = Clock::now();
        timed.model.forward(batch);
        const Clock::time_point forward = Clock::now();
        timed.model.backward();
        const Clock::time_point backward = Clock::now();
        timed.model.update(adamw);
        timed.backward = std::min(timed.backward, milliseconds(backward - forward));
        timed.whole = std::min(timed.whole, milliseconds(Clock::now() - start));
    };
    SingleProcess none(communicator().process());  // nothing is sent: the parts exist without it
    Timed alone(none, config, options);
    for (int step = 0; step < 4; step++) take_step(alone);
    const double bytes = static_cast<double>(table_of(config, world()).elements() * sizeof(float));
    SlowCommunicator slow(none, alone.backward / 2 / 1e3 / bytes);
    Timed slowed(slow, config, options);
    // Other programs may interfere for a while: with more steps the best ones of both approach their real
    // times.
    for (int step = 0; step < 15 || (step < 60 && slowed.whole > 1.15 * alone.whole); step++) {
        take_step(alone);
        take_step(slowed);
    }
    EXPECT_LE(slowed.whole, 1.15 * alone.whole) << "backward " << alone.backward << " ms";
    sum_over_processes(communicator(), {0});  // all processes leave together
}

}  // namespace
