// The engine trains any table of tensors: a family of this file, a language model of two MLP layers, learns,
// and its state moves to a fresh model, without a line outside of this file that knows it.
#include "kernels/encoder.cuh"
#include "kernels/gelu.cuh"
#include "model.cuh"

namespace {

// x0 = wte[token] + wpe[position];  x = gelu(x weight^T + bias) in each layer;  logits = x head^T
class Mlp : public Family<float> {
public:
    explicit Mlp(const ModelConfig& config) : config_(config), layers_(static_cast<size_t>(config.L)) {}
    const ModelConfig& config() const override { return config_; }

    void add_rows(TensorTable& table) override {
        const size_t C = channels(), V = static_cast<size_t>(config_.V),
                     Vp = static_cast<size_t>(config_.Vp());
        const Init normal = Init::normal(0.1f);
        wte_ = table.add(table.embedding(),
                         {.name = "wte", .shape = {Vp, C}, .init = normal, .unpadded_rows = V});
        wpe_ = table.add(table.embedding(), {"wpe", {static_cast<size_t>(config_.context), C}, normal});
        for (int l = 0; l < config_.L; l++) {
            const std::string name = std::to_string(l);
            layer(l).weight = table.add(table.block(l), {name + ".weight", {C, C}, normal, true});
            layer(l).bias = table.add(table.block(l), {name + ".bias", {C}, Init::constant(0)});
        }
        head_ = table.add(
            table.head(),
            {.name = "head", .shape = {Vp, C}, .init = normal, .from_matmul = true, .unpadded_rows = V});
    }
    void reserve(Arena& activations, Arena& workspace) override {
        const size_t elements =
            static_cast<size_t>(options().B) * static_cast<size_t>(options().T) * channels();
        activations.reserve(encoded_, elements);
        for (Layer& l : layers_) activations.reserve(l.pre, elements), activations.reserve(l.out, elements);
        workspace.reserve(dx_, elements);
        workspace.reserve(dpre_, elements);
    }
    Head<float> head() const override { return {layers_.back().out, dx_, head_}; }
    Activation activation(const std::string&, int l) const override {
        return {layers_.at(static_cast<size_t>(l)).out, rows() * channels()};
    }

    void embed() override {
        encoder_forward(encoded_, context_->inputs(), param(wte_), param(wpe_), context_->B, context_->T,
                        config_.C, stream());
    }
    void block_forward(int l) override {
        const Layer& a = layer(l);
        gemm().forward(a.pre, input(l), param(a.weight), param(a.bias), rows(), channels(), channels(),
                       stream());
        gelu_forward(a.out, a.pre, rows() * channels(), stream());
    }
    void head_norm_backward() override {}
    void block_backward(int l) override {
        const Layer& a = layer(l);
        gelu_backward(dpre_, dx_, a.pre, rows() * channels(), stream());
        gemm().backward_weight(grad(a.weight), grad(a.bias), dpre_, input(l), rows(), channels(), channels(),
                               context_->accumulates(), stream());
        gemm().backward_input(dx_, dpre_, param(a.weight), rows(), channels(), channels(), stream());
    }
    void embed_backward() override {
        encoder_backward(grad(wte_), grad(wpe_), dx_, context_->inputs(), context_->order(), context_->B,
                         context_->T, config_.C, stream());
    }

private:
    struct Layer {
        TensorId weight, bias;
        float *pre, *out;
    };
    Layer& layer(int l) { return layers_[static_cast<size_t>(l)]; }
    const float* input(int l) { return l == 0 ? encoded_ : layer(l - 1).out; }
    Gemm& gemm() { return *context_->gemm; }
    size_t channels() const { return static_cast<size_t>(config_.C); }

    const ModelConfig config_;
    TensorId wte_ = 0, wpe_ = 0, head_ = 0;
    std::vector<Layer> layers_;
    float *encoded_ = nullptr, *dx_ = nullptr, *dpre_ = nullptr;
};

constexpr int B = 4, T = 8;
constexpr ModelConfig shape{.V = 37, .context = T, .L = 2, .NH = 1, .C = 24, .family = "mlp"};

std::unique_ptr<Model<float>> mlp(int micro_batch) {
    auto model = std::make_unique<Model<float>>(
        std::make_unique<Mlp>(shape),
        ModelOptions{.B = micro_batch, .T = T, .total_batch = B * T, .seed = 1});
    model->allocate();
    return model;
}

// A token determines the one that follows it.
StepResult step(Model<float>& model, int number) {
    std::vector<int> inputs = random_tokens(B * T, shape.V, static_cast<unsigned>(number)), targets;
    for (const int token : inputs) targets.push_back((5 * token + 3) % shape.V);
    for (int first = 0; first < B; first += model.options().B) {
        model.forward(sequences(inputs, targets, T, first, model.options().B));
        model.backward(first + model.options().B == B);
    }
    return model.update(
        {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .clip = 1});
}

TEST(Family, AnotherFamilyLearnsAndSplitsAndResumes) {
    const auto whole = mlp(B), split = mlp(1);
    EXPECT_EQ(total_bytes(whole->memory_plan()) > total_bytes(split->memory_plan()), true);
    const int last = simt::checked ? 20 : 300, half = last / 2;  // a checked build is slow
    std::unique_ptr<Model<float>> resumed;
    float loss = 0;
    for (int s = 1; s <= last; s++) {
        const StepResult result = step(*whole, s);
        loss = result.loss;
        if (s == 1) { EXPECT_NEAR(result.loss, std::log(37.0), 0.2); }
        if (s <= 10) {  // sums in another order: rounding of fp32, as for GPT-2
            const StepResult same = step(*split, s);
            EXPECT_NEAR(same.loss / result.loss, 1, 1e-5);
            EXPECT_NEAR(same.grad_norm / result.grad_norm, 1, 1e-3);
        }
        if (resumed) { EXPECT_EQ(step(*resumed, s).loss, result.loss) << "step " << s; }
        if (s != half) continue;
        resumed = mlp(B);
        std::vector<float> state(whole->table().elements());
        whole->read_masters(state.data());
        resumed->write_masters(state.data());
        for (const std::string& buffer : whole->optimizer_buffers()) {
            whole->read_optimizer(buffer, state.data());
            resumed->write_optimizer(buffer, state.data());
        }
        resumed->set_optimizer_step(whole->optimizer_step());
    }
    EXPECT_LT(loss, simt::checked ? 3.4f : 0.05f);  // the first one is at least 3.41
    EXPECT_EQ(parameters_of(*resumed), parameters_of(*whole));
}

}  // namespace
