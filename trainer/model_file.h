// model_file.h: a trained GPT-2 in a file or a folder, opened and checked, its weights read where they are asked for.
//   a checkpoint of ours        a Hugging Face GPT-2 with a state.json, by which every file in it must be whole
//   a run's folder              its newest whole checkpoint
//   a Hugging Face GPT-2        model.safetensors, or the shards that model.safetensors.index.json names (hugging_face_reader.h)
//   a .bin of llm.c             llmc_model.h
//   gpt2, ORGANIZATION/NAME     a Hugging Face GPT-2 in the cache of their hub (hub_cache.h), if no file or folder has that name
// What a file says of itself is not believed: whatever does not fit the file or a GPT-2 is a UsageError that names the file and the
// tensor or the field, and nothing is allocated for sizes that the file does not have.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "tensor_table.h"

template <class T>
class GPT2;

class ModelFile {
public:
    ModelFile(std::string path, const GPT2Config& config) : path_(std::move(path)), table_(config), config_(config) {}
    virtual ~ModelFile() = default;
    ModelFile(const ModelFile&) = delete;

    const std::string& path() const { return path_; }  // the file, or the checkpoint's folder
    const GPT2Config& config() const { return config_; }
    const TensorTable& table() const { return table_; }

    // The tensor in fp32 and in our layout: (out, in) weights; wte with Vp rows, zero where padded. tensor is one of table()'s.
    // The first one with a value that is not finite is noted on stderr.
    std::vector<float> values(const Tensor& tensor) const;

private:
    virtual std::vector<float> read(const Tensor& tensor) const = 0;

    mutable bool is_noted_ = false;
    std::string path_;
    TensorTable table_;
    GPT2Config config_;
};

enum class WhichCheckpoint { newest, best };

// UsageError if there is no such model, or it is damaged, or is not the GPT-2 that GPT2 (gpt2.h) computes. best: path must be a run's
// folder with a checkpoint whose validation loss was measured.
std::unique_ptr<ModelFile> open_model(const std::string& path, WhichCheckpoint which = WhichCheckpoint::newest);

// The tokenizer the model was trained with, as make_tokenizer takes it: by the tokenizer files beside it, else by the size of its vocabulary.
// UsageError for files that recognise_tokenizer refuses.
std::string tokenizer_name(const ModelFile& file);

// Gives a model the file's weights. Its shape must be the file's, but its context may be shorter.
template <class T>
void load_weights(GPT2<T>& model, const ModelFile& file) {
    const GPT2Config &ours = model.config(), &theirs = file.config();
    CHECK(ours.V == theirs.V && ours.L == theirs.L && ours.NH == theirs.NH && ours.C == theirs.C,
          "{}: has {} layers, {} heads, {} channels and a vocabulary of {}; expected {}, {}, {} and {}", file.path(), theirs.L, theirs.NH, theirs.C,
          theirs.V, ours.L, ours.NH, ours.C, ours.V);
    CHECK(ours.context <= theirs.context, "{}: has a context of {}; expected at least {}", file.path(), theirs.context, ours.context);
    for (const Tensor& tensor : model.table().tensors()) {
        std::vector<float> values = file.values(file.table().at(tensor.kind, tensor.layer));
        values.resize(tensor.elements);  // of wpe, the positions that the model has
        model.set_parameter(tensor, values);
    }
}
