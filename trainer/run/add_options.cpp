#include "trainer/run/add_options.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trainer/command_line/config_file.h"
#include "trainer/models/families.h"
#include "trainer/run/schedule.h"
#include "trainer/tokenizer/tokenizer.h"

namespace {

const std::map<std::string, Optimizer> optimizers = {{"adamw", Optimizer::adamw},
                                                     {"adam", Optimizer::adam},
                                                     {"sgd", Optimizer::sgd},
                                                     {"rmsprop", Optimizer::rmsprop},
                                                     {"muon", Optimizer::muon}};
const std::map<std::string, MuonScale> muon_scales = {{"original", MuonScale::original},
                                                      {"match-rms", MuonScale::match_rms}};
const std::map<std::string, Recompute> recomputes = {
    {"none", Recompute::none}, {"gelu", Recompute::activation}, {"block", Recompute::block}};
const std::map<std::string, DType> reduce_dtypes = {{"fp32", DType::fp32}, {"bf16", DType::bf16}};

const Finetuning finetuning;
const MuonSchedule muon_schedule;
constexpr double below_1 = 0.9999999;
constexpr size_t most_letters = 50;  // longer names are unknown, and an error shows at most this many letters

// The options of one group of --help. Each call gives an option's scope, its names, where its value goes,
// and its help.
class Group {
public:
    Group(CLI::App& app, const std::string& name, Options& options)
        : group_(*app.add_option_group(name)), scopes_(options.scopes) {}

    template <class Value>
    CLI::Option* number(Scope scope, const std::string& names, Value& target, std::type_identity_t<Value> low,
                        std::type_identity_t<Value> high, const std::string& help) {
        return scoped(scope, add_number(group_, names, target, low, high, help));
    }
    // A number whose default depends on other options; its help gives the default in [brackets].
    template <class Value>
    CLI::Option* dependent(Scope scope, const std::string& names, Value& target,
                           std::type_identity_t<Value> low, std::type_identity_t<Value> high,
                           const std::string& help) {
        return number(scope, names, target, low, high, help)->default_str("");
    }
    template <class Value>
    void choice(Scope scope, const std::string& names, Value& target,
                const std::map<std::string, Value>& values, const std::string& help) {
        scoped(scope, add_choice(group_, names, target, values, help));
    }
    void word(Scope scope, const std::string& names, std::string& target,
              const std::vector<std::string>& words, const std::string& help) {
        scoped(scope, add_word(group_, names, target, words, help));
    }
    void word_or_file(Scope scope, const std::string& names, std::string& target,
                      const std::vector<std::string>& words, const std::string& help) {
        scoped(scope, add_word_or_file(group_, names, target, words, help));
    }
    CLI::Option* text(Scope scope, const std::string& names, std::string& target, const std::string& kind,
                      const std::string& help) {
        return scoped(scope, add_text(group_, names, target, kind, help));
    }
    void texts(Scope scope, const std::string& names, std::vector<std::string>& target,
               const std::string& kind, const std::string& help) {
        scoped(scope, add_texts(group_, names, target, kind, help));
    }
    CLI::Option* parsed(Scope scope, const std::string& names, const std::string& kind,
                        const std::string& default_value, const std::function<void(const std::string&)>& set,
                        const std::string& help) {
        return scoped(scope, add_parsed(group_, names, kind, default_value, set, help));
    }
    CLI::Option* flag(Scope scope, const std::string& name, bool& target, const std::string& help) {
        return scoped(scope, group_.add_flag(name, target, help));
    }

private:
    CLI::Option* scoped(Scope scope, CLI::Option* option) {
        scopes_[option->get_lnames().front()] = scope;
        return option;
    }

    CLI::App& group_;
    std::map<std::string, Scope>& scopes_;
};

using enum Scope;

void add_data(CLI::App& app, Options& o) {
    Group data(app, "data", o);
    data.texts(
        identity, "-i,--train-data", o.data.train, "FILE...",
        "token shards or texts to train on: files, folders, or patterns in quotes, in this order; texts are "
        "joined [the Shakespeare text]");
    data.texts(
        run, "-j,--val-data", o.data.val, "FILE...",
        "token shards or texts to validate on, in the same forms [the last tenth of the texts, or a folder's "
        "val shards]");
    data.word_or_file(
        identity, "--tokenizer", o.data.tokenizer, tokenizer_words,
        "how texts become tokens; gpt2-eot: as gpt2, and <|endoftext|> in a text is the token that "
        "ends it; FILE is a tokenizer.json or its folder; none accepts token shards only [byte, gpt2 "
        "or none, depending on --vocab]");
    data.word(identity, "--data-order", o.data.order, {"shuffled", "file"},
              "order of the samples in an epoch: shuffled anew in every epoch, or as in the files");
}

// The sizes that a Llama, a Qwen3 and a nanochat have. Without --model, one of them makes the model a Llama.
std::vector<CLI::Option*> add_llama(Group& model, ModelChoice& to) {
    ModelConfig& config = to.config;
    std::vector<CLI::Option*> all = {
        model.dependent(identity, "--kv-heads", config.NKV, 1, 4096,
                        "make the model a Llama, as each of the next options does, and give it this many "
                        "heads of keys and values, which the heads share [--heads]"),
        model.dependent(
            identity, "--hidden", config.H, 1, 1 << 20,
            "Llama: width of the MLP [8/3 of --channels, rounded up to a multiple of 32; nanochat: 4 times "
            "--channels]"),
        model.dependent(
            identity, "--head-size", config.head_size, 2, 128,
            "Llama: channels of a head, an even number; with it, --channels of a Qwen3 need not be a "
            "multiple of --heads [--channels / --heads]"),
        model.dependent(identity, "--rope-theta", config.rope_theta, least_rope_theta, most_rope_theta,
                        "Llama: base of the rotary position embeddings [10000; Qwen3: 1e+06]"),
        model.dependent(identity, "--norm-eps", config.norm_eps, least_norm_eps, most_norm_eps,
                        "Llama: added to the mean of squares by which a norm divides [1e-05; Qwen3 and "
                        "nanochat: 1e-06]"),
        model.flag(identity, "--untied", to.untied, "Llama: give the head weights of its own")};
    auto* qwen3 =
        model.flag(identity, "--qwen3", to.qwen3,
                   "make the model a Qwen3, which is a Llama whose queries and keys have norms with "
                   "weights; Llama's options are its own too");
    auto* nanochat = model.flag(
        identity, "--nanochat", to.nanochat,
        "make the model a nanochat, which is a Llama with normalised queries and keys, ReLU squared "
        "and capped logits; Llama's options are its own too");
    qwen3->excludes(nanochat);
    all.insert(all.end(), {qwen3, nanochat});
    return all;
}

void add_model(CLI::App& app, Options& o) {
    const auto set_name = [&o](const std::string& text) {
        try {
            named_model(text.substr(0, most_letters));
        } catch (const UsageError& unknown) { throw UsageError(fmt::format("--model: {}", unknown.what())); }
        o.model.name = text;
    };
    Group model(app, "model", o);
    ModelConfig& config = o.model.config;
    auto* name = model.parsed(
        start, "-e,--model", "NAME", "", set_name,
        "a named size instead of --layers, --heads and --channels: d12, gpt2, gpt2-medium, "
        "gpt2-large, gpt2-xl, gpt3:c768, llama:d12, smollm2:135m, qwen3:0.6b, nanochat:d12, ...");
    auto* layers = model.number(identity, "--layers", config.L, 1, 4096, "number of transformer blocks");
    auto* heads = model.number(identity, "--heads", config.NH, 1, 4096, "number of attention heads");
    auto* channels = model.number(identity, "--channels", config.C, 1, 1 << 17,
                                  "width of the model; a multiple of --heads");
    model.number(identity, "--context", config.context, 1, 1 << 20,
                 "longest sequence that the model accepts, in tokens");
    auto* vocab =
        model.number(identity, "--vocab", config.V, 1, max_vocab_size, "number of tokens in the vocabulary");
    auto* weights =
        model.text(start, "--init-from", o.model.init_from, "PATH",
                   fmt::format("start from the weights and the shape of this model: {} [random weights]",
                               model_path_help));
    name->excludes(layers)->excludes(heads)->excludes(channels);
    weights->excludes(name)->excludes(layers)->excludes(heads)->excludes(channels)->excludes(vocab);
    for (CLI::Option* of_llama : add_llama(model, o.model)) weights->excludes(of_llama);
}

void add_batch(CLI::App& app, Options& o) {
    const auto set_size = [&o](const std::string& text) {
        const std::optional<int> number = text == "auto" ? 0 : parse_number<int>(text);
        if (text != "auto" && !(number && *number >= 1 && *number <= max_batch_size))
            throw UsageError(refusal_of("--batch-size", text,
                                        fmt::format("a whole number from 1 to {}, or auto", max_batch_size)));
        o.batch.size = *number;
    };
    Group batch(app, "batch", o);
    batch.parsed(training, "-b,--batch-size", "N|auto", std::to_string(o.batch.size), set_size,
                 "sequences in a micro-step of one process; auto: the most that fit in memory and divide "
                 "the step");
    batch.dependent(identity, "-t,--seq-len", o.batch.seq_len, 1, most, "tokens in a sequence [the context]");
    batch.dependent(identity, "-d,--total-batch", o.batch.total, 1, size_t{1} << 40,
                    "tokens in a step, over all its micro-steps and processes [those of one micro-step]");
}

// The first family's defaults with muon, for random weights and with --init-from.
std::pair<MuonDefaults, MuonDefaults> gpt2_muon() {
    const FamilyDescription& gpt2 = families().front();
    return {gpt2.muon, gpt2.muon_finetuning};
}

// "; nanochat 0.1", for each family whose default for random weights is another.
std::string other_defaults(double MuonDefaults::*value) {
    std::string text;
    for (const FamilyDescription& family : families())
        if (family.muon.*value != families().front().muon.*value)
            text += fmt::format("; {} {}", family.title, family.muon.*value);
    return text;
}

void add_schedule(Group& optimizer, OptimizerChoice& to) {
    optimizer.number(
        training, "-q,--min-lr-fraction", to.min_lr_fraction, 0, 1,
        "learning rate at the end of the run, as a fraction of the peak; no effect with --schedule constant");
    optimizer.number(training, "-u,--warmup", to.warmup, 0, most,
                     fmt::format("steps over which the learning rate rises to its peak; the default with "
                                 "--init-from, --schedule constant or muon is {}",
                                 finetuning.warmup));
    optimizer.word(
        training, "-k,--schedule", to.schedule, schedule_names(),
        fmt::format("how the learning rate falls after warmup; wsd stays at the peak, then falls as "
                    "--cooldown says; the default with --init-from is {}, with muon {}",
                    finetuning.schedule, muon_schedule.schedule));
    optimizer.dependent(training, "--cooldown", to.cooldown, 1e-6, 1,
                        fmt::format("fraction of the steps over which wsd falls; an error with other "
                                    "schedules [{}; {} with muon]",
                                    to.cooldown, muon_schedule.cooldown));
    optimizer.word(
        training, "--cooldown-shape", to.cooldown_shape, cooldown_shapes(),
        fmt::format("how wsd falls: as 1 - sqrt(x) or as 1 - x, x from 0 to 1; an error with other "
                    "schedules; the default with muon is {}",
                    muon_schedule.cooldown_shape));
}

// The rates of what Muon does not update itself.
void add_muon(Group& optimizer, OptimizerChoice& to) {
    const auto [muon, finetuned] = gpt2_muon();
    const auto rate = [&, muon = muon, finetuned = finetuned](const char* name, double& target,
                                                              const char* of, double MuonDefaults::*value) {
        optimizer.dependent(
            training, name, target, 0, 1e30,
            fmt::format("peak learning rate of {}, which AdamW updates beside muon; an error "
                        "with other optimizers [{}{}; {} with --init-from, --lr with match-rms]",
                        of, muon.*value, other_defaults(value), finetuned.*value));
    };
    rate("--embedding-lr", to.embedding_lr, "embeddings that are not also the head",
         &MuonDefaults::embedding_lr);
    rate("--head-lr", to.head_lr, "the head", &MuonDefaults::head_lr);
    rate("--vector-lr", to.vector_lr, "biases and norms", &MuonDefaults::vector_lr);
    optimizer.choice(training, "--muon-scale", to.muon_scale, muon_scales,
                     "what muon multiplies --lr by for a matrix of rows x columns; original: sqrt(max(1, "
                     "rows/columns)); match-rms: 0.2 sqrt(max(rows, columns)), for which AdamW's --lr, "
                     "--weight-decay, warmup and schedule are the defaults");
}

void add_optimizer(CLI::App& app, Options& o) {
    OptimizerChoice& to = o.optimizer;
    Group optimizer(app, "optimizer", o);
    const auto [muon, muon_finetuned] = gpt2_muon();
    optimizer.choice(
        identity, "--optimizer", to.kind, optimizers,
        "update rule, computed as by the class of this name in torch.optim; muon updates the blocks' "
        "matrices, and AdamW everything else");
    optimizer.number(training, "-l,--lr", to.lr, 0, 1e30,
                     fmt::format("peak learning rate; the default with --init-from is {}, with muon {}, with "
                                 "both {}",
                                 finetuning.lr, muon.lr, muon_finetuned.lr));
    add_schedule(optimizer, to);
    optimizer.dependent(
        training, "-c,--weight-decay", to.weight_decay, 0, 1e30,
        "weight decay of tensors with two or more dimensions; decoupled with adamw, added to the "
        "gradient with other optimizers; with muon decoupled, and only of the blocks' matrices [0.1 with "
        "adamw and match-rms, 0 with others]");
    optimizer.number(training, "--beta1", to.beta1, 0, below_1,
                     fmt::format("decay rate of the running mean of gradients; adamw, adam and muon only, an "
                                 "error with other optimizers; the default with muon is {}{}",
                                 muon.beta1, other_defaults(&MuonDefaults::beta1)));
    optimizer.number(
        training, "--beta2", to.beta2, 0, below_1,
        fmt::format("decay rate of the running mean of squared gradients (alpha in torch's "
                    "RMSprop); an error with sgd; the default with --init-from is {}, with muon {}",
                    finetuning.beta2, muon.beta2));
    // 0 would divide 0 by 0 in the padded rows of wte.
    optimizer.number(
        training, "--eps", to.eps, 1e-30, 1,
        fmt::format("added to the denominator of the update; an error with sgd; the default with "
                    "muon is {}{}",
                    muon.eps, other_defaults(&MuonDefaults::eps)));
    optimizer.number(training, "--momentum", to.momentum, 0, below_1,
                     fmt::format("momentum of the update; sgd, rmsprop and muon only, an error with other "
                                 "optimizers; the default with muon is {}",
                                 muon_schedule.momentum));
    optimizer.flag(training, "--nesterov", to.nesterov,
                   "use Nesterov momentum, which needs --momentum; sgd only, an error with other optimizers");
    add_muon(optimizer, to);
    optimizer.number(training, "--clip", to.clip, 0, 1e30,
                     "largest norm of the gradient; a larger gradient is scaled down to it; 0: no limit");
    optimizer.number(run, "--max-skipped", to.max_skipped, 1, most,
                     "end the run with an error after this many consecutive steps whose gradient norm is not "
                     "finite");
    optimizer.number(training, "--skip-loss-z", to.skip_loss_z, 0, 1e30,
                     "skip the update of a step whose loss is more than this many standard deviations above "
                     "the mean of the last 128 steps; 0: never");
    optimizer.number(training, "--skip-norm-z", to.skip_norm_z, 0, 1e30,
                     "like --skip-loss-z, for the gradient norm; steps that either option skips do not count "
                     "towards --max-skipped");
}

void add_length(CLI::App& app, Options& o) {
    Group length(app, "length", o);
    auto* steps = length.number(
        training, "-x,--steps", o.length.steps, 1, most,
        fmt::format("steps to train; the default with --init-from is {:g} epochs", finetuning.epochs));
    auto* epochs = length.dependent(training, "--epochs", o.length.epochs, 1e-9, 1e9,
                                    "passes over the training data to train for, instead of --steps");
    auto* tokens = length.dependent(training, "--tokens", o.length.tokens, 1, size_t{1} << 60,
                                    "tokens to train on, instead of --steps");
    steps->excludes(epochs)->excludes(tokens);
    epochs->excludes(tokens);
}

void add_evaluation(CLI::App& app, Options& o) {
    EvaluationChoice& to = o.evaluation;
    Group evaluation(app, "evaluation", o);
    evaluation.number(run, "-v,--val-every", to.val_every, 0, most, "steps between validations; 0: never");
    evaluation.number(run, "-m,--val-steps", to.val_steps, 0, most,
                      "batches of --batch-size sequences in a validation; 0: all validation data");
    evaluation.text(
        run, "--hellaswag", to.hellaswag, "FILE",
        "HellaSwag examples to score the model on: the published .jsonl file or llm.c's .bin file [none]");
    evaluation.number(run, "--hellaswag-every", to.hellaswag_every, 0, most,
                      "steps between HellaSwag scores; 0: never");
    evaluation.number(run, "-s,--sample-every", to.sample_every, 0, most,
                      "steps between generated samples; 0: never");
    evaluation.number(run, "-g,--sample-tokens", to.sample_tokens, 1, most, "tokens in a generated sample");
}

void add_output(CLI::App& app, Options& o) {
    OutputChoice& to = o.output;
    Group output(app, "output", o);
    output.text(start, "-o,--out", to.folder, "DIR",
                "folder for all files that the run writes [a new folder in runs/]");
    output.number(run, "--log-every", to.log_every, 1, most, "steps between lines on the terminal");
    output.number(run, "--log-layer-norms", to.log_layer_norms, 0, most,
                  "steps between records of every layer's gradient and weight norms in metrics.jsonl; "
                  "0: never");
    output.number(run, "-n,--checkpoint-every", to.checkpoint_every, 0, most,
                  "steps between checkpoints; the last step is saved too; 0: save no checkpoints at all");
    output.number(run, "--keep", to.keep, 1, most,
                  "number of newest checkpoints to keep, besides the one with the lowest validation loss");
    output.number(run, "--keep-every", to.keep_every, 0, most,
                  "also keep the checkpoints whose step is a multiple of this; 0: none");
    output.text(
        start, "--resume", to.resume, "PATH",
        "none: start a new run; auto: continue from the newest checkpoint in --out, or start if there "
        "is none; or the folder of a run or a checkpoint to continue, with the run's own options "
        "except those given here");
}

void add_system(Options& o, Group& system) {
    SystemChoice& to = o.system;
    system.choice(training, "--dtype", to.dtype, dtypes, dtype_help);
    system.flag(training, "--deterministic", to.deterministic,
                "make repeated runs give the same bits; slower on a GPU, always on for a CPU");
    system.number(identity, "--seed", to.seed, 0, UINT64_MAX,
                  "seed of the initial weights, the order of the data and the generated samples");
    system.choice(training, "--recompute", to.recompute, recomputes,
                  "what the backward pass recomputes to save memory: the output of the GELU or of SwiGLU "
                  "(gelu), or all activations inside a block (block)");
    system.choice(training, "--attention", to.attention, attentions, attention_help);
    system.number(training, "--head-chunks", to.head_chunks, 1, most,
                  "compute the logits of a micro-step in this many parts, one after another, to save memory");
    system.number(run, "--zero", to.zero, 0, 1,
                  "1: each process keeps and updates only its part of the optimizer state (ZeRO-1), with the "
                  "same results");
    system.choice(training, "--reduce-dtype", to.reduce_dtype, reduce_dtypes,
                  "type in which processes exchange gradients");
    system.number(run, "--comm-timeout", to.comm_timeout, 0.1, 1e6,
                  "seconds that a process waits for the others before it gives up, also at the start and the "
                  "end of the run");
    system.number(run, "--check-replicas", to.check_replicas, 0, most,
                  "steps between checks that all processes have the same parameters; 0: never");
    system.dependent(start, "--profile", to.profile, 1, most,
                     fmt::format("measure every operation in this many steps after the first {}, print a "
                                 "table and continue [none]",
                                 Profile::warm_up));
    system.flag(run, "--no-graph", to.no_graph,
                "launch kernels one by one instead of as CUDA graphs; no effect on a CPU");
}

void add_plan(Options& o, Group& system) {
    PlanChoice& to = o.plan;
    const auto set_memory = [&to](const std::string& text) {
        to.device_memory = parse_bytes("--device-memory", text);
        CHECK(to.device_memory >= 1 << 20,
              "--device-memory {} is less than 1 MiB; expected a size such as 40G", text);
    };
    system.flag(start, "--plan", to.only,
                "print the memory plan and stop; with --world-size, also print what a process sends");
    system.parsed(start, "--device-memory", "SIZE", "", set_memory,
                  "plan for this much memory, such as 40G, instead of the free memory");
    system.number(start, "--world-size", o.world_size, 1, 1 << 16,
                  "with --plan: number of processes to plan for, one per GPU");
}

}  // namespace

void add_options(CLI::App& app, Options& o) {
    app.set_config("--config", "", "read options from a file, one per line, such as: lr = 0.0006")
        ->type_name("FILE")
        ->each(check_config_path);
    add_data(app, o);
    add_model(app, o);
    add_batch(app, o);
    add_optimizer(app, o);
    add_length(app, o);
    add_evaluation(app, o);
    add_output(app, o);
    Group system(app, "system", o);
    add_system(o, system);
    add_plan(o, system);
}

std::string name_of(Optimizer optimizer) { return name_of(optimizers, optimizer); }
