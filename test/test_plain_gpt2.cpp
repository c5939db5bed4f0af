// plain_gpt2.h, the oracle of the other tests, against PyTorch (dev/reference.py), in float and double.
#include <map>

#include "common.cuh"

namespace {

template <class Number>
struct PlainGPT2 : testing::Test {
    using Values = std::vector<Number>;
};
using Numbers = testing::Types<float, double>;
TYPED_TEST_SUITE(PlainGPT2, Numbers);

// A dump of one operation: its inputs, and what comes of them.
template <class Number>
struct Dump {
    using Values = std::vector<Number>;
    const std::string name;
    const SafetensorsFile file = reference(name);

    Values operator()(const std::string& tensor) const {
        const std::vector<float> floats = file.floats(tensor);
        return {floats.begin(), floats.end()};
    }
    size_t size(const std::string& tensor, size_t dimension) const {
        return file.at(tensor).shape[dimension];
    }
    // A dump is rounded to fp32 once. In fp32 a sum of C terms has a few roundings more.
    void expect(const std::map<std::string, Values>& results) const {
        const double bound = std::is_same_v<Number, double> ? 0x1p-22 : 2e-6;
        for (const auto& [tensor, values] : results)
            EXPECT_LE(relative_error(values, file.floats(tensor)), bound) << name << ": " << tensor;
    }
};

TYPED_TEST(PlainGPT2, Encoder) {
    const Dump<TypeParam> dump{"encoder"};
    const std::vector<int> tokens = dump.file.ints("inp");
    const size_t N = tokens.size(), T = dump.size("inp", 1), C = dump.size("wte", 1);
    typename TestFixture::Values out(N * C), dwte(dump("wte").size()), dwpe(dump("wpe").size());
    plain::encoder_forward(out.data(), tokens.data(), dump("wte").data(), dump("wpe").data(), N, T, C);
    plain::encoder_backward(dwte.data(), dwpe.data(), dump("dout").data(), tokens.data(), N, T, C);
    dump.expect({{"out", out}, {"dwte", dwte}, {"dwpe", dwpe}});
}

TYPED_TEST(PlainGPT2, Layernorm) {
    for (const bool residual : {false, true}) {
        const Dump<TypeParam> dump{residual ? "residual_layernorm" : "layernorm"};
        auto inp = dump(residual ? "inp1" : "inp");
        if (residual) plain::residual(inp.data(), inp.data(), dump("inp2").data(), inp.size());
        const auto weight = dump("weight"), dout = dump("dout");
        const size_t C = weight.size(), N = inp.size() / C;
        typename TestFixture::Values out(N * C), mean(N), rstd(N), dinp(N * C), dweight(C), dbias(C);
        plain::layernorm_forward(out.data(), mean.data(), rstd.data(), inp.data(), weight.data(),
                                 dump("bias").data(), N, C);
        plain::layernorm_backward(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(),
                                  weight.data(), mean.data(), rstd.data(), N, C);
        if (residual) plain::residual(dinp.data(), dinp.data(), dump("dresidual").data(), N * C);
        dump.expect({{"out", out},
                     {"mean", mean},
                     {"rstd", rstd},
                     {"dinp", dinp},
                     {"dweight", dweight},
                     {"dbias", dbias}});
    }
}

TYPED_TEST(PlainGPT2, Matmul) {
    const Dump<TypeParam> dump{"matmul"};
    const auto inp = dump("inp"), weight = dump("weight"), bias = dump("bias");
    const size_t OC = bias.size(), C = weight.size() / OC, N = inp.size() / C;
    typename TestFixture::Values out(N * OC), dinp(N * C), dweight(OC * C), dbias(OC);
    plain::matmul_forward(out.data(), inp.data(), weight.data(), bias.data(), N, C, OC);
    plain::matmul_backward(dinp.data(), dweight.data(), dbias.data(), dump("dout").data(), inp.data(),
                           weight.data(), N, C, OC);
    dump.expect({{"out", out}, {"dinp", dinp}, {"dweight", dweight}, {"dbias", dbias}});
}

// Far into both tails, and between the two products of an MLP.
TYPED_TEST(PlainGPT2, Gelu) {
    for (const bool mlp : {false, true}) {
        const Dump<TypeParam> dump{mlp ? "matmul_gelu" : "gelu"};
        const auto inp = dump(mlp ? "pre_gelu" : "inp");
        typename TestFixture::Values out(inp.size()), dinp(inp.size());
        plain::gelu_forward(out.data(), inp.data(), inp.size());
        plain::gelu_backward(dinp.data(), dump("dout").data(), inp.data(), inp.size());
        dump.expect({{"out", out}, {mlp ? "dpre_gelu" : "dinp", dinp}});
    }
}

TYPED_TEST(PlainGPT2, Attention) {
    const Dump<TypeParam> dump{"attention"};
    const auto qkv = dump("qkv"), dout = dump("dout");  // qkv (B, T, 3, NH, HS)
    const size_t B = dump.size("qkv", 0), T = dump.size("qkv", 1), NH = dump.size("qkv", 3),
                 HS = dump.size("qkv", 4);
    typename TestFixture::Values out(dout.size()), lse(B * NH * T), dqkv(qkv.size());
    plain::attention_forward(out.data(), lse.data(), qkv.data(), B, T, NH, HS);
    plain::attention_backward(dqkv.data(), dout.data(), qkv.data(), out.data(), lse.data(), B, T, NH, HS);
    dump.expect({{"out", out}, {"lse", lse}, {"dqkv", dqkv}});
}

// Some targets are ignored, and padded logits are large.
TYPED_TEST(PlainGPT2, CrossEntropy) {
    const Dump<TypeParam> dump{"cross_entropy"};
    const std::vector<int> targets = dump.file.ints("targets");
    const auto expected = dump("dlogits");
    const size_t N = targets.size(), Vp = dump.size("logits", 1);
    size_t V = 0;  // the columns past V are those without any gradient
    for (size_t i = 0; i < expected.size(); i++) {
        if (expected[i] != 0) V = std::max(V, i % Vp + 1);
    }
    ASSERT_LT(V, Vp);
    typename TestFixture::Values losses(N), dlogits(N * Vp);
    plain::cross_entropy_forward_backward(losses.data(), dlogits.data(), dump("logits").data(),
                                          targets.data(), dump("dloss")[0], N, V, Vp);
    dump.expect({{"losses", losses}, {"dlogits", dlogits}});
}

TYPED_TEST(PlainGPT2, TenStepsOfAdamW) {
    const Dump<TypeParam> dump{"adamw"};
    const auto lr = dump.file.floats("lr"), norms = dump.file.floats("grad_norm");
    for (const std::string name : {"weight", "bias"}) {
        auto x = dump(name), grads = dump("grad." + name);
        const size_t n = x.size();
        typename TestFixture::Values m(n), v(n), all_x, all_m, all_v;
        for (size_t s = 0; s < lr.size(); s++) {
            TypeParam* const g = &grads[s * n];
            for (size_t i = 0; i < n; i++) g[i] *= static_cast<TypeParam>(plain::clipping(norms[s], 1.0));
            plain::adamw_update(x.data(), m.data(), v.data(), g, n, static_cast<int>(s) + 1,
                                {.lr = lr[s], .weight_decay = name == "weight" ? 0.1 : 0.0});
            all_x.insert(all_x.end(), x.begin(), x.end());
            all_m.insert(all_m.end(), m.begin(), m.end());
            all_v.insert(all_v.end(), v.begin(), v.end());
        }
        dump.expect({{name + ".after", all_x}, {"exp_avg." + name, all_m}, {"exp_avg_sq." + name, all_v}});
    }
}

template <class Number>
plain::GPT2<Number> model_of(const SafetensorsFile& dump) {
    plain::Tensors<Number> parameters;
    for (const auto& [name, tensor] : dump.tensors()) {
        if (!name.starts_with("transformer.")) continue;
        const std::vector<float> values = dump.floats(name);
        parameters[name].assign(values.begin(), values.end());
    }
    return {{.V = 131, .L = 2, .NH = 3, .C = 48}, parameters};
}
constexpr size_t T = 19;

TYPED_TEST(PlainGPT2, TheModelsActivationsLossesAndGradients) {
    const double most = std::is_same_v<TypeParam, double> ? 0x1p-22 : 1e-5;
    for (const std::string name : {"model", "model_bf16"}) {
        const SafetensorsFile dump = reference(name);
        plain::GPT2<TypeParam> model = model_of<TypeParam>(dump);
        const TypeParam loss = model.forward(dump.ints("x"), dump.ints("y"), T);
        model.backward();
        EXPECT_NEAR(loss, dump.floats("loss")[0], most);
        EXPECT_LE(relative_error(model.activations["losses"], dump.floats("losses")), most);
        for (const auto& [tensor, gradient] : model.gradients)
            EXPECT_LE(relative_error(gradient, dump.floats("grad." + tensor)), most) << tensor;
        if (name == "model_bf16") continue;
        EXPECT_LE(relative_error(model.activations["logits"], dump.floats("logits")), most);
        size_t compared = 0;
        for (const auto& [tensor, values] : model.activations) {
            if (!dump.contains("act." + tensor)) continue;
            EXPECT_LE(relative_error(values, dump.floats("act." + tensor)), most) << tensor;
            compared++;
        }
        EXPECT_EQ(compared, 2u + 2 * 8);
    }
}

TYPED_TEST(PlainGPT2, TenStepsOfTraining) {
    const bool in_double = std::is_same_v<TypeParam, double>;
    const SafetensorsFile dump = reference("trajectory");
    plain::GPT2<TypeParam> model = model_of<TypeParam>(reference("model"));
    const std::vector<int> x = dump.ints("x"), y = dump.ints("y");
    const auto losses = dump.floats("loss.fp64"), norms = dump.floats("grad_norm.fp64");
    const size_t N = x.size() / losses.size();
    for (size_t s = 0; s < losses.size(); s++) {
        const auto batch = [&](const std::vector<int>& all) {
            return std::vector<int>(&all[s * N], &all[s * N] + N);
        };
        EXPECT_NEAR(model.forward(batch(x), batch(y), T) / losses[s], 1, in_double ? 1e-7 : 1e-5);
        model.backward();
        EXPECT_NEAR(model.update({.lr = 1e-3}, static_cast<int>(s) + 1, 1.0) / norms[s], 1,
                    in_double ? 1e-7 : 1e-4);
    }
    size_t compared = 0;
    for (const auto& [name, values] : model.parameters) {
        if (!dump.contains("final." + name)) continue;
        compared++;
        EXPECT_LE(relative_error(values, dump.floats("final." + name)), in_double ? 0x1p-22 : 1e-4) << name;
    }
    EXPECT_EQ(compared, 6u);
}

}  // namespace
