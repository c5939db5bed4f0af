// model_file.h: a trained GPT-2 in a file or folder that was opened and checked. Its weights are read one
// tensor at a time.
//   checkpoint/open_model.h opens one by its path.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "system/error.h"
#include "trainer/model/tensor_table.h"

template <class T>
class GPT2;

class ModelFile {
public:
    ModelFile(std::string path, const GPT2Config& config)
        : path_(std::move(path)), table_(config), config_(config) {}
    virtual ~ModelFile() = default;
    ModelFile(const ModelFile&) = delete;

    const std::string& path() const { return path_; }  // the model's file or folder
    const GPT2Config& config() const { return config_; }
    const TensorTable& table() const { return table_; }

    // Reads a tensor of table() as fp32 in our layout: (out, in) weights; wte with Vp rows, zero where
    // padded. The first tensor with a value that is not finite is noted on stderr.
    std::vector<float> values(const Tensor& tensor) const;

private:
    virtual std::vector<float> read(const Tensor& tensor) const = 0;

    mutable bool is_noted_ = false;
    std::string path_;
    TensorTable table_;
    GPT2Config config_;
};

// The tokenizer that the model was trained with, as make_tokenizer takes it: from the tokenizer files beside
// the model. A folder without any that is one of OpenAI's GPT-2s, by its place or its config.json, has gpt2;
// any other has none, which a note says. A model of llm.c has gpt2, or byte, by its vocabulary.
std::string tokenizer_name(const ModelFile& file);

// Loads the file's weights into a model. The shapes must be equal, except that the model's context may be
// shorter.
template <class T>
void load_weights(GPT2<T>& model, const ModelFile& file) {
    const GPT2Config &ours = model.config(), &theirs = file.config();
    CHECK(ours.V == theirs.V && ours.L == theirs.L && ours.NH == theirs.NH && ours.C == theirs.C,
          "{}: has {} layers, {} heads, {} channels and a vocabulary of {}; expected {}, {}, {} and {}",
          file.path(), theirs.L, theirs.NH, theirs.C, theirs.V, ours.L, ours.NH, ours.C, ours.V);
    CHECK(ours.context <= theirs.context, "{}: has a context of {}; expected at least {}", file.path(),
          theirs.context, ours.context);
    for (const Tensor& tensor : model.table().tensors()) {
        std::vector<float> values = file.values(file.table().at(tensor.kind, tensor.layer));
        values.resize(tensor.elements);  // cuts wpe to the positions that the model has
        model.set_parameter(tensor, values);
    }
}
