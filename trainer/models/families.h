// families.h: the list of families, which is the only place that knows all of them.
//   A family is a folder of this one: its rows of the table, its block, its files.
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trainer/engine/model_config.h"
#include "trainer/engine/tensor_table.h"

class ConfigFields;
template <class T>
class Family;

// The options that --optimizer muon sets, unless they are given. These values suit random weights whose
// embeddings have a standard deviation of 0.02; a family with others has values of its own.
struct MuonDefaults {
    // peak learning rates of matrices, embeddings, the head and vectors
    double lr = 0.02, embedding_lr = 0.003, head_lr = 0.003, vector_lr = 0.003;
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // of AdamW, which updates all but matrices
};

// An entry in the list of families. It does not depend on the type in which the model computes.
struct FamilyDescription {
    const char* name;   // model_type in config.json
    const char* title;  // as messages call it: "GPT-2"
    // The shape with the sizes that follow from others where they are 0.
    ModelConfig (*complete)(ModelConfig config);
    // UsageError for a shape that it cannot have.
    void (*check)(const ModelConfig& config);
    void (*add_rows)(TensorTable& table, const ModelConfig& config);
    // Floating-point operations a token, forward and backward.
    double (*flops_per_token)(const ModelConfig& config, int seq_len);
    std::map<std::string, ModelConfig> sizes;  // by the names of --model
    bool has_flag = false;  // a flag of its name makes a model of it, whatever sizes are given
    MuonDefaults muon{};
    MuonDefaults muon_finetuning{
        .lr = 0.0005, .embedding_lr = 3e-5, .head_lr = 3e-5, .vector_lr = 3e-5};  // with --init-from

    // Its Hugging Face folder.
    const char* prefix;  // of most tensors' names; files may lack it
    // Refuses every setting with which the model would differ from ours.
    ModelConfig (*read_config)(const ConfigFields& fields);
    // The fields of config.json, except the numbers of special tokens.
    nlohmann::json (*write_config)(const ModelConfig& config);
    // True for a tensor, by its name without prefix, that carries no weights and that old files hold.
    bool (*is_ignored)(const std::string& bare_name, const ModelConfig& config);
    // Name of the tensor that is also the head of a tied model; a file may repeat it as lm_head.weight.
    const char* tied_head;
    // The tensors in the order of llm.c's files; nullptr: llm.c has no such model.
    std::vector<TensorId> (*llmc_order)(const ModelConfig& config);
};

const std::vector<FamilyDescription>& families();
const FamilyDescription& family_of(const ModelConfig& config);

// The model's sizes by the names of their options, those that GPT-2 does not have only for other families.
nlohmann::json sizes_of(const ModelConfig& config);

// A shape by a name of --model, in which _ may stand for the colon. UsageError for another name gives the one
// that it resembles, or lists all of them.
ModelConfig named_model(const std::string& name);

// UsageError, which begins with the file's path, for a shape that its family cannot have.
void check_shape(const std::string& path, const ModelConfig& config);

// The family's table. UsageError for an impossible shape.
TensorTable table_of(const ModelConfig& config, const TableLayout& layout = {});

// The model's blocks, for Model (engine/model.h) and Generator (inference/generator.h).
template <class T>
std::unique_ptr<Family<T>> make_family(const ModelConfig& config);
