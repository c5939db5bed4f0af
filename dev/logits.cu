// logits: the logits of a model for given tokens, for comparison with other programs
// (dev/check_interchange.py)
//   logits MODEL TOKENS.safetensors OUT.safetensors [fp32|tf32|bf16]
//   TOKENS has integer tensors of shape (T), T up to the model's context. OUT has a tensor (T, V) F32 of the
//   same name for each; row t has the logits of the token after tokens 0 to t. MODEL is anything that
//   open_model opens.
#include <algorithm>

#include "system/run_main.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/formats/model_file.h"
#include "trainer/formats/safetensors.h"
#include "trainer/model/dtype.h"
#include "trainer/model/gpt2.h"

template <class T>
static std::vector<float> logits_of(GPT2<T>& model, const std::vector<int>& tokens) {
    const size_t N = tokens.size(), V = static_cast<size_t>(model.config().V),
                 Vp = static_cast<size_t>(model.config().Vp());
    // inputs, targets (unused), and the inputs' order by token
    std::vector<int32_t> memory(tokens.begin(), tokens.end());
    memory.resize(2 * N, Batch::ignored);
    for (size_t i = 0; i < N; i++) memory.push_back(static_cast<int32_t>(i));
    std::stable_sort(memory.begin() + static_cast<std::ptrdiff_t>(2 * N), memory.end(),
                     [&](int32_t a, int32_t b) {
                         return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
                     });
    Batch batch{};
    batch.B = 1;
    batch.T = static_cast<int>(N);
    batch.inputs = memory.data();
    batch.targets = memory.data() + N;
    batch.order = memory.data() + 2 * N;
    model.evaluate(batch);
    const std::vector<float> padded = model.activation("logits");
    std::vector<float> logits(N * V);
    for (size_t t = 0; t < N; t++) std::copy_n(padded.data() + t * Vp, V, logits.data() + t * V);
    return logits;
}

template <class T>
static void run(const ModelFile& file, const std::string& tokens_path, const std::string& out_path,
                bool tf32) {
    const SafetensorsFile tokens(tokens_path);
    GPT2<T> model(file.config(),
                  {.B = 1, .T = file.config().context, .total_batch = 1, .training = false, .tf32 = tf32});
    model.allocate();
    load_weights(model, file);
    std::vector<std::vector<float>> logits;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : tokens.tensors()) {
        const std::vector<int> ids = tokens.ints(name);
        CHECK(!ids.empty() && ids.size() <= static_cast<size_t>(file.config().context),
              "{}: {} has {} tokens; expected 1 to {}", tokens_path, name, ids.size(), file.config().context);
        for (const int id : ids)
            CHECK(id >= 0 && id < file.config().V, "{}: {} has token {}; expected 0 to {}", tokens_path, name,
                  id, file.config().V - 1);
        logits.push_back(logits_of(model, ids));
        tensors.push_back(
            {name, "F32", {ids.size(), static_cast<size_t>(file.config().V)}, logits.back().data()});
    }
    write_safetensors(out_path, tensors);
}

int main(int argc, char** argv) {
    return run_main("logits", [&] {
        CHECK(argc == 4 || argc == 5, "expected MODEL TOKENS.safetensors OUT.safetensors [fp32|tf32|bf16]");
        const std::string dtype = argc == 5 ? argv[4] : "fp32";
        CHECK(dtypes.contains(dtype), "'{}'; expected fp32, tf32 or bf16", dtype);
        simt::select_device();
        const std::unique_ptr<ModelFile> file = open_model(argv[1]);
        if (dtype == "bf16") run<bfloat16>(*file, argv[2], argv[3], false);
        else run<float>(*file, argv[2], argv[3], dtype == "tf32");
    });
}
