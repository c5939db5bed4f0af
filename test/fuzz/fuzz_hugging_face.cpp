// A Hugging Face folder: config.json, model.safetensors, model.safetensors.index.json, a second shard and
// tokenizer.json are the parts of an input; an empty part is a missing file. The project's vocabulary is
// replaced by a small one, because reading the real one takes longer than everything else.
#include "fuzz.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/models/model_file.h"
#include "trainer/tokenizer/tokenizer.h"

static void open(const FuzzFolder& folder) {
    read_or_refuse([&] {
        const std::unique_ptr<ModelFile> file = open_model(folder.path());
        for (const Tensor& tensor : file->table().tensors())
            require(file->values(tensor).size() == tensor.elements);
        make_tokenizer(tokenizer_name(*file));
    });
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    static const FuzzFolder data;
    data.write("gpt2_encoder.json", R"({"a": 0})");
    static std::string variable = "FLATGPT_DATA=" + data.path();
    return putenv(variable.data());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const FuzzFolder folder("model");
    folder.clear();
    const std::vector<std::string_view> parts = parts_of(as_text(data, size), 5);
    const char* const names[] = {"config.json", "model.safetensors", "model.safetensors.index.json",
                                 "model-2.safetensors", "tokenizer.json"};
    for (size_t i = 0; i < parts.size(); i++) {
        if (!parts[i].empty()) folder.write(names[i], parts[i]);
    }
    open(folder);
    for (const size_t i : {1, 3}) {
        if (!parts[i].empty()) folder.write(names[i], with_header_length(parts[i]));
    }
    open(folder);
    return 0;
}
