// options.h: the command line of train_gpt2. The default values below are the whole recipe that runs without
// any option:
//   nanoGPT's CPU recipe, a byte-level model on the Shakespeare text that ships with the project. With
//   --init-from they
//   are those of its finetuning: a trained model forgets at the rates that a fresh one needs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/distributed/launcher.h"
#include "trainer/formats/model_file.h"
#include "trainer/model/dtype.h"
#include "trainer/model/gpt2.h"
#include "trainer/model/schedule.h"
#include "trainer/run/scaling.h"

// Defaults with --init-from: nanoGPT's config/finetune_shakespeare.py, whose 20 steps are about two epochs.
struct Finetuning {
    double lr = 3e-5, beta2 = 0.95, epochs = 2;
    int warmup = 0;
    std::string schedule = "constant";
};

constexpr int max_batch_size = 1 << 20;  // sequences

struct Options {
    // data
    std::string train_data, val_data;  // empty: the text that ships with the project
    // as make_tokenizer takes it; empty: default_tokenizer of the vocabulary
    std::string tokenizer;
    std::string data_order = "shuffled";
    // model
    std::string model;  // empty: the sizes below
    std::string init_from;
    // what init_from names: config is its shape; nullptr: weights are drawn
    std::shared_ptr<const ModelFile> initial;
    GPT2Config config;
    // batch
    int batch_size = 12;     // 0: auto
    int seq_len = 0;         // 0: the context
    size_t total_batch = 0;  // 0: one micro-step
    // optimizer
    Optimizer optimizer = Optimizer::adamw;
    double lr = 1e-3, min_lr_fraction = 0.1, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.99, eps = 1e-8,
           momentum = 0, clip = 1.0;
    bool nesterov = false;
    double skip_loss_z = 0, skip_norm_z = 0;  // 0: no step is an outlier
    int warmup = 100, max_skipped = 10;
    std::string schedule = "cosine";
    // length
    int steps = 2000;
    double epochs = 0;  // 0: by steps
    size_t tokens = 0;  // 0: by steps
    // evaluation
    int val_every = 250, val_steps = 0, sample_every = 500, sample_tokens = 800;
    std::string hellaswag;  // empty: none
    int hellaswag_every = 250;
    // output
    std::string out;  // empty: a new folder under runs/
    int log_every = 1, log_layer_norms = 0, checkpoint_every = 500, keep = 2, keep_every = 0;
    std::string resume = "none";
    // system
    DType dtype = DType::fp32;
    bool deterministic = false;
    uint64_t seed = 1337;
    Recompute recompute = Recompute::none;
    int head_chunks = 1;
    AttentionBackend attention = AttentionBackend::automatic;
    int zero = 0;                      // 1: ZeRO-1, a part of the optimizer state in each process
    DType reduce_dtype = DType::fp32;  // in which gradients are sent
    double comm_timeout = 600;         // seconds
    int check_replicas = 0;            // steps; 0: never
    int profile = 0;                   // steps to measure; 0: none
    bool no_graph = false;
    bool plan = false;
    std::optional<size_t> device_memory;  // bytes
    int world_size = 1, rank = 0;         // processes that share a step, and which of them this one is
    Machines machines;                    // planned for
    double tokens_per_second = 0;         // of one process, for the plan; 0: assumed

    nlohmann::json values;  // of every option, by name

    // Of all processes together.
    size_t micro_batch_tokens() const {
        return static_cast<size_t>(batch_size) * static_cast<size_t>(seq_len) *
               static_cast<size_t>(world_size);
    }
    int accumulation() const { return static_cast<int>(total_batch / micro_batch_tokens()); }
    int step_count(uint64_t windows) const;  // from --steps, --tokens, or --epochs of so many windows
    StepShape step_shape() const;            // how --plan describes it to the scaling model
    OptimizerOptions optimizer_at(double learning_rate) const {
        return {learning_rate, beta1, beta2, eps, weight_decay, clip, momentum, nesterov};
    }
};

// Parses and checks; fills what depends on other options (sequence length, total batch unless the batch size
// is auto, tokenizer).
// UsageError in one line for anything wrong. std::nullopt: --help or --version was printed and there is
// nothing to run.
std::optional<Options> parse_options(int argc, const char* const* argv, const Process& process = {});
