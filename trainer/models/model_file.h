// model_file.h: a trained model in a file or folder that was opened and checked. Its weights are read one
// tensor at a time.
//   checkpoint/open_model.h opens one by its path.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "system/error.h"
#include "trainer/engine/model_config.h"
#include "trainer/engine/tensor_table.h"
#include "trainer/models/families.h"

template <class T>
class Model;

class ModelFile {
public:
    ModelFile(std::string path, const ModelConfig& config)
        : path_(std::move(path)), table_(table_of(config)), config_(config) {}
    virtual ~ModelFile() = default;
    ModelFile(const ModelFile&) = delete;

    const std::string& path() const { return path_; }  // the model's file or folder
    const ModelConfig& config() const { return config_; }
    const TensorTable& table() const { return table_; }

    // Fills `to` with whole rows of a tensor of table(), from element `first` on, as fp32 in our layout:
    // (out, in) weights; zero where padded. The first tensor with a value that is not finite is noted on
    // stderr.
    void values(const Tensor& tensor, size_t first, std::span<float> to) const;
    std::vector<float> values(const Tensor& tensor) const;  // all of them

private:
    // The same, for one row or more of which none is padding.
    virtual void read(const Tensor& tensor, size_t first, std::span<float> to) const = 0;

    mutable bool is_noted_ = false;
    std::string path_;
    TensorTable table_;
    ModelConfig config_;
};

// The tokenizer that the model was trained with, as make_tokenizer takes it: from the tokenizer files beside
// the model. A folder without any that is one of OpenAI's GPT-2s, by its place or its config.json, has gpt2;
// any other has none, which a note says. A model of llm.c has gpt2, or byte, by its vocabulary.
std::string tokenizer_name(const ModelFile& file);

// Loads the file's weights into a model. The shapes must be equal, except that the model's context may be
// shorter.
template <class T>
void load_weights(Model<T>& model, const ModelFile& file) {
    const ModelConfig &ours = model.config(), &theirs = file.config();
    ModelConfig cut = theirs;
    cut.context = ours.context;
    CHECK(ours == cut,
          "{}: has {} layers, {} heads, {} channels and a vocabulary of {}; expected {}, {}, {} and {}",
          file.path(), theirs.L, theirs.NH, theirs.C, theirs.V, ours.L, ours.NH, ours.C, ours.V);
    CHECK(ours.context <= theirs.context, "{}: has a context of {}; expected at least {}", file.path(),
          theirs.context, ours.context);
    std::vector<float> values;
    for (const Tensor& tensor : model.table().tensors()) {
        values.resize(tensor.elements);  // fewer embeddings of positions than in the file
        file.values(file.table().named(tensor.name), 0, values);
        model.set_parameter(tensor, values);
    }
}
