// positions: trains a small GPT-2 whose positions are learned, rotated or missing, for
// docs/learn/10-positions.md
//   positions none|learned|rotated SEED STEPS LR TEXT
//   Everything but the positions is equal: the model, its initial weights, and the batches. All have wpe, as
//   long as the evaluation's windows; only "learned" adds it. Training sees windows of 64 bytes.
//   Prints one JSON object:
//   train (STEPS): the loss of each step
//   loss (256): mean loss by position, over windows of 256 bytes of the text's last tenth
//   slowed (3, 256): the same over a quarter of the windows, if the pairs from 2, from 3 and from 4 on turn 4
//   times more slowly than in training; only for "rotated"
//   slope: how fast the trained model's loss rises along its gradient by the weights of queries and keys,
//   from two losses, over the gradient's length; 1 if backward is right
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dev/learn/number.h"
#include "kernels/attention/rope.cuh"
#include "system/run_main.h"
#include "trainer/data/data_loader.h"
#include "trainer/engine/model.h"
#include "trainer/models/gpt2/gpt2_table.h"
#include "trainer/models/operations.h"
#include "trainer/run/schedule.h"

namespace {

constexpr int trained = 64, evaluated = 4 * trained, sequences = 16;
constexpr double theta = 10000;

// GPT-2's block, as in trainer/models/gpt2/gpt2.cuh; the lines that differ ask for learned() or rotated().
class Positions : public Operations<float> {
public:
    Positions(const ModelConfig& config, std::string kind) : Operations(config), kind_(std::move(kind)) {}

    void add_rows(TensorTable& table) override { p_ = add_gpt2(table, config()); }
    void reserve(Arena& activations, Arena& workspace) override;
    void allocated() override {
        Operations::allocated();
        slow_down(config().HS() / 2, 1);
    }
    // From now on the pairs from `first` on turn `factor` times more slowly than in training.
    void slow_down(int first, double factor) {
        const int HS = config().HS(), half = HS / 2;
        std::vector<float> table = rope_table(options().T, HS, theta);
        for (int t = 0; t < options().T; t++) {
            for (int i = first; i < half; i++) {
                const double angle = t * std::pow(theta, -2.0 * i / HS) / factor;
                table[static_cast<size_t>(t * HS + i)] = static_cast<float>(std::cos(angle));
                table[static_cast<size_t>(t * HS + half + i)] = static_cast<float>(std::sin(angle));
            }
        }
        simt::copy_to_device(rotations_, table.data(), table.size() * sizeof(float), stream());
        simt::stream_synchronize(stream());
    }
    Head<float> head() const override { return {lnf_.out, dnarrow_, p_.wte}; }

    void embed() override {
        encoder(encoded_, p_.wte, learned() ? p_.wpe : no_tensor);
        norm(block_[0].ln1, encoded_, p_.layers[0].ln1);
    }
    void block_forward(int l) override;
    void head_norm_backward() override {
        norm_backward(dresidual_, dnarrow_, block_input(config().L), lnf_, p_.lnf, dbias_before(config().L),
                      false);
    }
    void block_backward(int l) override;
    void embed_backward() override { encoder_backward(p_.wte, learned() ? p_.wpe : no_tensor, dresidual_); }

private:
    struct Block {
        Normalised<float> ln1, ln2;
        float *qkv = nullptr, *att = nullptr, *residual2 = nullptr, *fch = nullptr, *fch_gelu = nullptr,
              *residual3 = nullptr, *lse = nullptr;
    };

    bool learned() const { return kind_ == "learned"; }
    bool rotated() const { return kind_ == "rotated"; }
    float* block_input(int l) { return l == 0 ? encoded_ : block_[l - 1].residual3; }
    // The bias gradient of the projection that was added to the stream before block l.
    float* dbias_before(int l) {
        return l == 0 ? nullptr : grad(p_.layers[static_cast<size_t>(l - 1)].fcproj.bias);
    }

    const std::string kind_;
    GPT2Parameters p_;
    OfBlocks<Block> block_;
    Normalised<float> lnf_;
    float *encoded_ = nullptr, *rotations_ = nullptr, *branch_ = nullptr, *dresidual_ = nullptr,
          *dnarrow_ = nullptr, *dwide_ = nullptr;
};

void Positions::block_forward(int l) {
    const auto& p = p_.layers[static_cast<size_t>(l)];
    Block& a = block_[l];
    const bool last = l + 1 == config().L;
    matmul("qkv", a.qkv, a.ln1.out, p.qkv);
    if (rotated()) rope(a.qkv, {}, {rotations_}, shape(), stream());
    attention(a.att, a.lse, a.qkv, l);
    matmul("attproj", branch_, a.att, p.attproj);
    residual_norm(a.ln2, a.residual2, block_input(l), branch_, p.ln2);
    matmul("fc + GELU", a.fch_gelu, a.ln2.out, p.fc, ::Activation::gelu, a.fch);
    matmul("fcproj", branch_, a.fch_gelu, p.fcproj);
    residual_norm(last ? lnf_ : block_[l + 1].ln1, a.residual3, a.residual2, branch_,
                  last ? p_.lnf : p_.layers[static_cast<size_t>(l + 1)].ln1);
}

void Positions::block_backward(int l) {
    const auto& p = p_.layers[static_cast<size_t>(l)];
    Block& a = block_[l];
    matmul_dweight("fcproj dW", p.fcproj.weight, dresidual_, a.fch_gelu);
    matmul_dinput("fcproj dX + dGELU", dwide_, dresidual_, p.fcproj.weight, ::Activation::gelu, a.fch);
    matmul_dweight_dbias("fc dW", p.fc, dwide_, a.ln2.out);
    matmul_dinput("fc dX", dnarrow_, dwide_, p.fc.weight);
    norm_backward(dresidual_, dnarrow_, a.residual2, a.ln2, p.ln2, grad(p.attproj.bias));
    matmul_dweight("attproj dW", p.attproj.weight, dresidual_, a.att);
    matmul_dinput("attproj dX", dnarrow_, dresidual_, p.attproj.weight);
    attention_backward(dwide_, dnarrow_, a.qkv, a.att, a.lse);
    if (rotated()) rope(dwide_, {}, {rotations_, -1}, shape(), stream());
    matmul_dweight_dbias("qkv dW", p.qkv, dwide_, a.ln1.out);
    matmul_dinput("qkv dX", dnarrow_, dwide_, p.qkv.weight);
    norm_backward(dresidual_, dnarrow_, block_input(l), a.ln1, p.ln1, dbias_before(l));
}

void Positions::reserve(Arena& activations, Arena& workspace) {
    const size_t N = most_rows(), C = channels();
    reserve_rows(activations, "encoded", -1, encoded_, C);
    activations.reserve(rotations_, static_cast<size_t>(options().T) * static_cast<size_t>(config().HS()));
    block_.resize(static_cast<size_t>(config().L));
    for (int l = 0; l < config().L; l++) {
        Block& a = block_[l];
        reserve_norm(activations, "ln1", l, a.ln1, true);
        reserve_norm(activations, "ln2", l, a.ln2, true);
        reserve_rows(activations, "qkv", l, a.qkv, 3 * C);
        reserve_rows(activations, "att", l, a.att, C);
        reserve_rows(activations, "residual2", l, a.residual2, C);
        reserve_rows(activations, "fch", l, a.fch, 4 * C);
        reserve_rows(activations, "fch_gelu", l, a.fch_gelu, 4 * C);
        reserve_rows(activations, "residual3", l, a.residual3, C);
        activations.reserve(a.lse, N * static_cast<size_t>(config().NH));
    }
    reserve_norm(activations, "lnf", -1, lnf_, true);
    for (float** tensor : {&branch_, &dresidual_, &dnarrow_}) workspace.reserve(*tensor, N * C);
    workspace.reserve(dwide_, N * 4 * C);
    reserve_scratch(workspace, 3);
}

// The bytes of a part of the text, as tokens.
TokenShard shard_of(const std::string& text, size_t begin, size_t end) {
    std::vector<Token> tokens;
    for (size_t i = begin; i < end; i++) tokens.push_back(static_cast<unsigned char>(text[i]));
    return TokenShard(std::move(tokens), "the text");
}

std::string read_text(const char* path) {
    std::ifstream file(path, std::ios::binary);
    CHECK(file.good(), "{} cannot be read", path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// The weights of queries and keys are the first two thirds of these tensors.
bool is_qkv(const Tensor& tensor) { return tensor.name.ends_with("attn.c_attn.weight"); }

// By how much the loss rises along g, the gradient of the weights of queries and keys, over |g|: 1 if g is
// the gradient. From two losses; leaves the model elsewhere.
double measured_slope(Model<float>& model, const Batch& batch) {
    constexpr double step = 0.003;  // long beside the rounding of an fp32 loss, short beside the weights
    model.forward(batch);
    model.backward();
    std::vector<std::vector<float>> directions, weights;
    double square = 0;
    for (const Tensor& tensor : model.table().tensors()) {
        if (!is_qkv(tensor)) continue;
        weights.push_back(model.parameter(tensor)), directions.push_back(model.gradient(tensor));
        directions.back().resize(weights.back().size() / 3 * 2);
        for (const float g : directions.back()) square += static_cast<double>(g) * static_cast<double>(g);
    }
    const auto loss_at = [&](double distance) {
        size_t l = 0;
        for (const Tensor& tensor : model.table().tensors()) {
            if (!is_qkv(tensor)) continue;
            std::vector<float> moved = weights[l];
            for (size_t i = 0; i < directions[l].size(); i++)
                moved[i] += static_cast<float>(distance / std::sqrt(square)) * directions[l][i];
            model.set_parameter(tensor, moved);
            l++;
        }
        return model.evaluate(batch) / batch.target_count;
    };
    return (loss_at(step) - loss_at(-step)) / (2 * step) / std::sqrt(square);
}

// Mean loss by position, over windows that begin every `stride` bytes.
std::string losses_by_position(Model<float>& model, const std::string& text, size_t begin, size_t stride) {
    std::vector<double> sum(evaluated, 0.0);
    size_t windows = 0;
    for (size_t shift = 0; shift < evaluated; shift += stride) {
        const TokenShard shard = shard_of(text, begin + shift, text.size());
        ValidationLoader loader({&shard, 1}, sequences, evaluated, model.config().V);
        for (size_t i = 0; i < loader.batches(); i++) {
            const Batch& batch = loader.at(i);
            model.evaluate(batch);
            const std::vector<float> losses = model.losses();
            const size_t count = static_cast<size_t>(batch.target_count);  // padding comes last
            for (size_t n = 0; n < count; n++) sum[n % evaluated] += static_cast<double>(losses[n]);
            windows += count / evaluated;
        }
    }
    std::string list;
    for (const double s : sum)
        list += fmt::format("{}{}", list.empty() ? "" : ", ", s / static_cast<double>(windows));
    return "[" + list + "]";
}

void experiment(const std::string& kind, uint64_t seed, int steps, double lr, const std::string& text) {
    CHECK(text.size() > 20 * evaluated, "a text of {} bytes; expected more", text.size());
    ModelConfig config;
    config.V = 256, config.context = evaluated, config.L = 2, config.NH = 4, config.C = 64;
    constexpr size_t tokens = size_t{sequences} * trained;
    auto family = std::make_unique<Positions>(config, kind);
    Positions& positions = *family;
    Model<float> model(std::move(family),
                       {.B = sequences, .T = evaluated, .total_batch = tokens, .seed = seed});
    model.allocate();
    const size_t end = text.size() / 10 * 9;
    const TokenShard shard = shard_of(text, 0, end);
    DataLoader loader({&shard, 1},
                      {.B = sequences, .T = trained, .V = config.V, .total_batch = tokens, .seed = seed});
    const Schedule schedule{.steps = steps, .warmup = steps / 10, .lr = lr, .min_fraction = 0.1};
    std::string train, slowed;
    for (int step = 1; step <= steps; step++) {
        model.forward(loader.at(step, 0));
        model.backward();
        const StepResult result = model.update({.lr = schedule.at(step),
                                                .beta1 = 0.9,
                                                .beta2 = 0.99,
                                                .eps = 1e-8,
                                                .weight_decay = 0.1,
                                                .clip = 1});
        train += fmt::format("{}{}", step > 1 ? ", " : "", result.loss);
    }
    const std::string loss = losses_by_position(model, text, end, trained);
    for (int first = 2; kind == "rotated" && first <= 4; first++) {
        positions.slow_down(first, evaluated / trained);
        slowed += (first > 2 ? ", " : "") + losses_by_position(model, text, end, evaluated);
    }
    positions.slow_down(config.HS() / 2, 1);
    write_output(fmt::format("{{\"slope\": {}, \"train\": [{}], \"loss\": {}, \"slowed\": [{}]}}\n",
                             measured_slope(model, loader.at(1, 0)), train, loss, slowed),
                 "the result");
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("positions", [&] {
        const std::string kind = argc == 6 ? argv[1] : "";
        CHECK(kind == "none" || kind == "learned" || kind == "rotated",
              "expected none|learned|rotated SEED STEPS LR TEXT");
        simt::select_device();
        experiment(kind, number<uint64_t>(argv[2]), number<int>(argv[3]), number<double>(argv[4]),
                   read_text(argv[5]));
    });
}
