// options.h: the options of train_gpt2's command line, in the groups of --help.
//   The defaults are a complete recipe that needs no option: nanoGPT's CPU recipe, a byte-level model of
//   the Shakespeare text that ships with the project. With --init-from some defaults are those of
//   nanoGPT's finetuning, because a trained model forgets at the learning rates that a fresh one needs.
//   add_options.cpp defines each option: name, scope, range and help.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/distributed/launcher.h"
#include "trainer/engine/dtype.h"
#include "trainer/engine/model.h"
#include "trainer/models/model_file.h"
#include "trainer/run/schedule.h"

// The scope of an option decides what a resumed run does with it.
enum class Scope {
    identity,  // the model and its data: a resumed run must have the same value (run_identity)
    training,  // what training computes: the value may change, with a note
    run,       // anything else about a run: the value may change
    start,     // one start of the program: a resumed run does not inherit the value
};

// Defaults with --init-from: nanoGPT's config/finetune_shakespeare.py, whose 20 steps are about two epochs.
struct Finetuning {
    double lr = 3e-5, beta2 = 0.95, epochs = 2;
    int warmup = 0;
    std::string schedule = "constant";
};

// The defaults of our runs with Muon, which the published runs share.
struct MuonSchedule {
    double momentum = 0.95, cooldown = 0.7;
    int warmup = 0;
    std::string schedule = "wsd", cooldown_shape = "linear";
};

constexpr int max_batch_size = 1 << 20;  // sequences

struct DataChoice {
    // as input_files takes them; an empty `train` is the Shakespeare text that ships with the project
    std::vector<std::string> train, val;
    std::string tokenizer;  // as make_tokenizer takes it; empty: default_tokenizer(V)
    std::string order = "shuffled";
};

struct ModelChoice {
    std::string name;  // empty: the sizes in config
    std::string init_from;
    std::shared_ptr<const ModelFile> initial;  // the model of init_from; null: random weights
    ModelConfig config;
    bool untied = false, qwen3 = false, nanochat = false;
};

struct BatchChoice {
    int size = 12;     // sequences in a micro-step of a process; 0: auto
    int seq_len = 0;   // 0: the context
    size_t total = 0;  // tokens in a step; 0: one micro-step
};

struct OptimizerChoice {
    Optimizer kind = Optimizer::adamw;
    double lr = 1e-3, min_lr_fraction = 0.1, weight_decay = 0.1;
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8, momentum = 0, clip = 1.0;
    bool nesterov = false;
    // of muon only; the rates of what it does not update itself
    double embedding_lr = 0, head_lr = 0, vector_lr = 0;
    MuonScale muon_scale = MuonScale::original;
    double skip_loss_z = 0, skip_norm_z = 0;  // 0: no step is an outlier
    int warmup = 100, max_skipped = 10;
    std::string schedule = "cosine";
    double cooldown = 0.2;  // of wsd
    std::string cooldown_shape = "sqrt";
};

// At most one of epochs and tokens is positive; either takes precedence over steps.
struct RunLength {
    int steps = 2000;
    double epochs = 0;
    size_t tokens = 0;
};

struct EvaluationChoice {
    int val_every = 250, val_steps = 0, sample_every = 500, sample_tokens = 800;
    std::string hellaswag;  // empty: none
    int hellaswag_every = 250;
};

struct OutputChoice {
    std::string folder;  // empty: a new one under runs/
    int log_every = 1, log_layer_norms = 0, checkpoint_every = 500, keep = 2, keep_every = 0;
    std::string resume = "none";
};

struct SystemChoice {
    DType dtype = DType::fp32;
    bool deterministic = false;
    uint64_t seed = 1337;
    Recompute recompute = Recompute::none;
    int head_chunks = 1;
    AttentionBackend attention = AttentionBackend::automatic;
    int zero = 0;                      // 1: ZeRO-1, each rank keeps a part of the optimizer state
    DType reduce_dtype = DType::fp32;  // type in which gradients are sent
    double comm_timeout = 600;         // seconds
    int check_replicas = 0;            // steps; 0: never
    int profile = 0;                   // steps to measure; 0: none
    bool no_graph = false;
};

struct PlanChoice {
    bool only = false;                    // print the plan and stop
    std::optional<size_t> device_memory;  // bytes
};

struct Options {
    DataChoice data;
    ModelChoice model;
    BatchChoice batch;
    OptimizerChoice optimizer;
    RunLength length;
    EvaluationChoice evaluation;
    OutputChoice output;
    SystemChoice system;
    PlanChoice plan;
    int world_size = 1, rank = 0;  // processes that share a step, and this process's rank

    nlohmann::json values;                // every option's final value, by name
    std::map<std::string, Scope> scopes;  // by name

    // Tokens of a micro-step over all processes.
    size_t micro_batch_tokens() const {
        return static_cast<size_t>(batch.size) * static_cast<size_t>(batch.seq_len) *
               static_cast<size_t>(world_size);
    }
    // Micro-steps in a step.
    int accumulation() const { return static_cast<int>(batch.total / micro_batch_tokens()); }
    int step_count(uint64_t windows) const;  // from --steps, --tokens, or --epochs over `windows` windows
    OptimizerOptions optimizer_at(double learning_rate) const;
};

// Parses and checks the command line and fills values that depend on other options (sequence length,
// total batch unless the batch size is auto, tokenizer). Throws a one-line UsageError for anything wrong.
// std::nullopt: --help or --version was printed and there is nothing to do.
std::optional<Options> parse_options(int argc, const char* const* argv, const Process& process = {});
