#include "options.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>

#include "command_line.h"

namespace {

const std::map<std::string, Optimizer> optimizers = {
    {"adamw", Optimizer::adamw}, {"adam", Optimizer::adam}, {"sgd", Optimizer::sgd}, {"rmsprop", Optimizer::rmsprop}};
const std::map<std::string, Recompute> recomputes = {{"none", Recompute::none}, {"gelu", Recompute::gelu}, {"block", Recompute::block}};
const std::map<std::string, DType> reduce_dtypes = {{"fp32", DType::fp32}, {"bf16", DType::bf16}};

// Every option by its name, with the value it was given or its default: what the run's first line of metrics shows.
nlohmann::json values_of(const CLI::App& app) {
    nlohmann::json values = nlohmann::json::object();
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_lnames().empty() || !option->get_configurable()) continue;
        if (option->get_items_expected_max() == 0) {
            values[option->get_lnames().front()] = option->as<bool>();  // --flag=false is false
            continue;
        }
        const std::string text = option->count() > 0 ? option->results().front() : option->get_default_str();
        const nlohmann::json number = nlohmann::json::parse(text, nullptr, false);
        values[option->get_lnames().front()] = number.is_number() ? number : nlohmann::json(text);
    }
    for (const CLI::App* group : app.get_subcommands(nullptr)) values.update(values_of(*group));
    return values;
}

}  // namespace

StepShape Options::step_shape() const {
    StepShape step{.config = config, .seq_len = seq_len, .most_sequences = batch_size, .total_batch = total_batch};
    step.recompute_block = recompute == Recompute::block;
    step.zero = zero;
    step.gradients = reduce_dtype == DType::bf16 ? Collective::bf16 : Collective::fp32;
    step.parameters = dtype == DType::bf16 ? Collective::bf16 : Collective::fp32;
    // What llm.c reaches with 124M on an A100 is 175 TFLOP/s.
    step.tokens_per_second = tokens_per_second > 0 ? tokens_per_second : 156e12 / flops_per_token(config, seq_len);
    return step;
}

int Options::step_count(uint64_t windows) const {
    double count = steps;
    if (epochs > 0) count = std::ceil(epochs * static_cast<double>(windows) / (static_cast<double>(total_batch) / seq_len));
    if (tokens > 0) count = std::ceil(static_cast<double>(tokens) / static_cast<double>(total_batch));
    CHECK(count <= 1 << 30, "a run of {:.3g} steps; expected at most {}", count, 1 << 30);
    return static_cast<int>(count);
}

std::optional<Options> parse_options(int argc, const char* const* argv, const Process& process) {
    Options o;
    o.world_size = process.world_size;
    o.rank = process.rank;
    std::string batch_size = std::to_string(o.batch_size), device_memory, link = "nvlink3", network = "hdr8";
    CLI::App app("Trains GPT-2 and GPT-3 models. Without options: a small byte-level model on Shakespeare.", "train_gpt2");
    app.option_defaults()->always_capture_default();
    app.set_config("--config", "", "file with the same names as the options, one a line: lr = 0.0006")->check(CLI::ExistingFile);
    app.allow_config_extras(CLI::config_extras_mode::error);
    const auto positive = CLI::Range(1, 1 << 30), not_negative = CLI::Range(0, 1 << 30);
    const auto fraction = between(0.0, 1.0), not_below_0 = between(0.0, 1e30), below_1 = between(0.0, 0.9999999);

    auto* data = app.add_option_group("data");
    data->add_option("-i,--train-data", o.train_data,
                     "token shards (.bin) or texts (.txt), a glob; a lone text holds out its last tenth [the Shakespeare text]");
    data->add_option("-j,--val-data", o.val_data, "the same for validation");
    data->add_option("--tokenizer", o.tokenizer, "for texts and samples [gpt2, or byte for a vocabulary up to 256]")
        ->check(CLI::IsMember({"gpt2", "byte"}));
    data->add_option("--data-order", o.data_order, "order of the samples in an epoch")->check(CLI::IsMember({"shuffled", "file"}));

    auto* model = app.add_option_group("model");
    auto* named = model->add_option("-e,--model", o.model, "d12, gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3:c768, ... instead of sizes");
    auto* layers = model->add_option("--layers", o.config.L, "blocks")->check(CLI::Range(1, 4096));
    auto* heads = model->add_option("--heads", o.config.NH, "attention heads")->check(CLI::Range(1, 4096));
    auto* channels = model->add_option("--channels", o.config.C, "width, a multiple of the heads")->check(CLI::Range(1, 1 << 17));
    auto* context = model->add_option("--context", o.config.context, "longest sequence the model can see")->check(CLI::Range(1, 1 << 20));
    auto* vocab = model->add_option("--vocab", o.config.V, "tokens in the vocabulary")->check(CLI::Range(1, 65536));
    auto* init_from = model->add_option("--init-from", o.init_from,
                                        fmt::format("weights to start from, with their model's shape: {} [drawn at random]", model_path_help));

    auto* batch = app.add_option_group("batch");
    batch->add_option("-b,--batch-size", batch_size, "sequences a micro-step, or auto: the most that fit and divide the total");
    batch->add_option("-t,--seq-len", o.seq_len, "tokens of a sequence [the context]")->check(positive)->default_str("");
    batch->add_option("-d,--total-batch", o.total_batch, "tokens of a step [one micro-step]")
        ->check(CLI::Range(size_t{1}, size_t{1} << 40))
        ->default_str("");

    auto* optimizer = app.add_option_group("optimizer");
    add_choice(*optimizer, "--optimizer", o.optimizer, optimizers, "how gradients change parameters, as torch.optim's of that name");
    optimizer->add_option("-l,--lr", o.lr, "peak learning rate")->check(not_below_0);
    optimizer->add_option("-q,--min-lr-fraction", o.min_lr_fraction, "of the peak, at the end")->check(fraction);
    optimizer->add_option("-u,--warmup", o.warmup, "steps of linear warmup")->check(not_negative);
    optimizer->add_option("-k,--schedule", o.schedule, "after warmup")->check(CLI::IsMember({"cosine", "linear", "constant", "wsd"}));
    auto* weight_decay =
        optimizer
            ->add_option("-c,--weight-decay", o.weight_decay,
                         "on tensors of two or more dimensions; decoupled with adamw, else added to the gradient [adamw: 0.1, else 0]")
            ->check(not_below_0)
            ->default_str("");
    auto* beta1 = optimizer->add_option("--beta1", o.beta1, "adamw, adam; refused with the others, like all that does not belong")->check(below_1);
    auto* beta2 = optimizer->add_option("--beta2", o.beta2, "adamw, adam; rmsprop: its alpha")->check(below_1);
    auto* eps =
        optimizer->add_option("--eps", o.eps, "adamw, adam, rmsprop")->check(between(1e-30, 1.0));  // 0 would divide 0 by 0 in the padded rows of wte
    auto* momentum = optimizer->add_option("--momentum", o.momentum, "sgd, rmsprop")->check(below_1);
    auto* nesterov = optimizer->add_flag("--nesterov", o.nesterov, "sgd: Nesterov's momentum");
    optimizer->add_option("--clip", o.clip, "largest gradient norm, 0: any")->check(not_below_0);
    optimizer->add_option("--max-skipped", o.max_skipped, "steps in a row with a gradient norm that is not finite before the run ends")
        ->check(positive);

    optimizer
        ->add_option("--skip-loss-z", o.skip_loss_z,
                     "leave out the update of a step whose loss lies this many standard deviations above the mean of the last 128, 0: never")
        ->check(not_below_0);
    optimizer->add_option("--skip-norm-z", o.skip_norm_z, "the same by the gradient norm; such steps do not count for --max-skipped")
        ->check(not_below_0);

    auto* length = app.add_option_group("length");
    auto* steps = length->add_option("-x,--steps", o.steps, "steps")->check(positive);
    auto* epochs =
        length->add_option("--epochs", o.epochs, "passes over the training data, instead of steps")->check(between(1e-9, 1e9))->default_str("");
    auto* tokens =
        length->add_option("--tokens", o.tokens, "training tokens, instead of steps")->check(CLI::Range(size_t{1}, size_t{1} << 60))->default_str("");
    steps->excludes(epochs)->excludes(tokens);
    epochs->excludes(tokens);

    auto* evaluation = app.add_option_group("evaluation");
    evaluation->add_option("-v,--val-every", o.val_every, "steps between validations, 0: never")->check(not_negative);
    evaluation->add_option("-m,--val-steps", o.val_steps, "batches of a validation, 0: the whole split")->check(not_negative);
    evaluation->add_option("--hellaswag", o.hellaswag, "HellaSwag to score the model by: the published .jsonl, or llm.c's .bin [none]");
    evaluation->add_option("--hellaswag-every", o.hellaswag_every, "steps between HellaSwag scores, 0: never")->check(not_negative);
    evaluation->add_option("-s,--sample-every", o.sample_every, "steps between samples, 0: never")->check(not_negative);
    evaluation->add_option("-g,--sample-tokens", o.sample_tokens, "tokens of a sample")->check(positive);

    auto* output = app.add_option_group("output");
    output->add_option("-o,--out", o.out, "folder for everything the run writes [a new one under runs/]");
    output->add_option("--log-every", o.log_every, "steps between lines on the terminal")->check(positive);
    output->add_option("--log-layer-norms", o.log_layer_norms, "steps between norms of gradients and weights by layer in metrics.jsonl, 0: never")
        ->check(not_negative);
    output->add_option("-n,--checkpoint-every", o.checkpoint_every, "steps between checkpoints; the last step has one too; 0: never one")
        ->check(not_negative);
    output->add_option("--keep", o.keep, "newest checkpoints that are kept, besides the best validated one")->check(positive);
    output->add_option("--keep-every", o.keep_every, "keep the checkpoints of every Nth step for good, 0: none")->check(not_negative);
    output->add_option("--resume", o.resume, "none; auto: from the newest checkpoint of --out, or the start; or a checkpoint's or run's folder");

    auto* system = app.add_option_group("system");
    add_choice(*system, "--dtype", o.dtype, dtypes, "of parameters and activations");
    system->add_flag("--deterministic", o.deterministic, "the same bits from the same run, always so on CPUs; slower on a GPU");
    system->add_option("--seed", o.seed, "of weights, data order and samples");
    add_choice(*system, "--recompute", o.recompute, recomputes, "what backward computes again instead of keeping it");
    add_choice(*system, "--attention", o.attention, attentions, "implementation of attention");
    system->add_option("--head-chunks", o.head_chunks, "parts of a micro-step's tokens for which logits exist one after another, to save memory")
        ->check(positive);
    system->add_option("--zero", o.zero, "1: each process keeps and updates its part of the optimizer state only; the results stay the same")
        ->check(CLI::Range(0, 1));
    add_choice(*system, "--reduce-dtype", o.reduce_dtype, reduce_dtypes, "in which processes send each other gradients");
    system
        ->add_option("--comm-timeout", o.comm_timeout,
                     "seconds after which processes that wait for another one give up, also at the start and at the end")
        ->check(between(0.1, 1e6));
    system->add_option("--check-replicas", o.check_replicas, "steps between comparisons of the processes' parameters, 0: never")->check(not_negative);
    system
        ->add_option(
            "--profile", o.profile,
            fmt::format("measure every operation of so many steps, after the first {}; then print a table and go on [none]", Profile::warm_up))
        ->check(positive)
        ->default_str("");
    system->add_flag("--no-graph", o.no_graph, "launch every kernel by itself, without CUDA graphs, which only GPUs have");
    system->add_flag("--plan", o.plan, "print the memory plan, and with --world-size a model of its scaling, and stop");
    system->add_option("--device-memory", device_memory, "plan for this much instead of what is free, such as 40G");
    const CLI::Option* of_plan[] = {
        system->add_option("--world-size", o.world_size, "plan for so many processes, one a GPU")->check(CLI::Range(1, 1 << 16)),
        system->add_option("--gpus-per-machine", o.machines.per_machine, "plan: of those processes")->check(CLI::Range(1, 1 << 16)),
        system->add_option("--link", link,
                           fmt::format("plan: between GPUs of a machine: {}, or GB/s and microseconds such as 235,3.4", known_links())),
        system->add_option("--network", network, "plan: between machines, all cards of one together; the same names, or GB/s and microseconds"),
        system->add_option("--tokens-per-second", o.tokens_per_second, "plan: of one process alone, measured [that of 156 TFLOP/s, half an A100]")
            ->check(between(1e-3, 1e12))
            ->default_str(""),
    };

    if (!parse(app, argc, argv)) return std::nullopt;

    if (*named) {
        for (const CLI::Option* size : {layers, heads, channels}) {
            CHECK(!*size, "--model {} and {} exclude each other; expected the name or the sizes", o.model, size->get_name());
        }
        const int own_context = o.config.context, own_vocab = o.config.V;
        o.config = GPT2Config::named(o.model);
        if (*context) o.config.context = own_context;
        if (*vocab) o.config.V = own_vocab;
    }
    if (*init_from) {
        for (const CLI::Option* size : {named, layers, heads, channels, vocab}) {
            CHECK(!*size, "--init-from and {} exclude each other; the model's shape is that of {}", size->get_name(), o.init_from);
        }
        const int own_context = o.config.context;
        o.initial = open_model(o.init_from);
        o.config = o.initial->config();
        if (*context) {
            CHECK(own_context <= o.config.context, "--context {} is longer than the context of {} in {}; expected at most that", own_context,
                  o.config.context, o.initial->path());
            o.config.context = own_context;
        }
        if (o.tokenizer.empty()) o.tokenizer = tokenizer_name(*o.initial);
    }
    // Like torch.optim, whose classes know no arguments of another: what would have no effect is refused.
    const auto belongs = [&](const CLI::Option* option, std::initializer_list<Optimizer> owners) {
        CHECK(!*option || std::find(owners.begin(), owners.end(), o.optimizer) != owners.end(),
              "{} has no effect on --optimizer {}; please leave it out", option->get_name(), name_of(optimizers, o.optimizer));
    };
    belongs(beta1, {Optimizer::adamw, Optimizer::adam});
    belongs(beta2, {Optimizer::adamw, Optimizer::adam, Optimizer::rmsprop});
    belongs(eps, {Optimizer::adamw, Optimizer::adam, Optimizer::rmsprop});
    belongs(momentum, {Optimizer::sgd, Optimizer::rmsprop});
    belongs(nesterov, {Optimizer::sgd});
    CHECK(!o.nesterov || o.momentum > 0, "--nesterov needs a --momentum above 0, such as 0.9");
    if (!*weight_decay && o.optimizer != Optimizer::adamw) o.weight_decay = 0;

    if (o.tokenizer.empty()) o.tokenizer = o.config.V > 256 ? "gpt2" : "byte";
    if (!*vocab && !*named && !*init_from && o.tokenizer == "gpt2") o.config.V = 50257;
    o.config.check();

    if (o.seq_len == 0) o.seq_len = o.config.context;
    CHECK(o.seq_len <= o.config.context, "--seq-len {} is longer than the context of {}; expected at most the context", o.seq_len, o.config.context);
    if (batch_size == "auto") {
        o.batch_size = 0;
        if (o.total_batch == 0) throw UsageError("--batch-size auto needs --total-batch: the tokens of a step that micro-steps divide");
    } else {
        size_t used = 0;
        try {
            o.batch_size = std::stoi(batch_size, &used);
        } catch (const std::exception&) { used = 0; }
        CHECK(used == batch_size.size() && used > 0 && o.batch_size > 0 && o.batch_size <= max_batch_size,
              "--batch-size {}; expected a number from 1 to {}, or auto", batch_size, max_batch_size);
        CHECK(o.batch_size <= INT_MAX / o.seq_len, "--batch-size {} makes {} tokens a micro-step; expected at most {}", o.batch_size,
              int64_t{o.batch_size} * o.seq_len, INT_MAX);
        if (o.total_batch == 0) o.total_batch = o.micro_batch_tokens();
        const size_t micro = o.micro_batch_tokens(), below = o.total_batch / micro * micro;
        CHECK(o.total_batch == below, "--total-batch {} is not a multiple of a micro-step's {} x {}{} = {} tokens; {}{} would be", o.total_batch,
              o.batch_size, o.seq_len, o.world_size == 1 ? "" : fmt::format(" x {} processes", o.world_size), micro,
              below == 0 ? "" : fmt::format("{} or ", below), below + micro);
    }
    CHECK(o.total_batch % static_cast<size_t>(o.seq_len) == 0, "--total-batch {} is not a multiple of the {} tokens of a sequence", o.total_batch,
          o.seq_len);
    CHECK(o.total_batch / static_cast<size_t>(o.seq_len) % static_cast<size_t>(o.world_size) == 0,
          "the {} sequences of a step do not divide among {} processes; expected --total-batch to be a multiple of {} tokens",
          o.total_batch / static_cast<size_t>(o.seq_len), o.world_size, static_cast<size_t>(o.seq_len) * static_cast<size_t>(o.world_size));
    CHECK(o.total_batch / static_cast<size_t>(o.seq_len) <= 1 << 30, "--total-batch {} is {} sequences; expected at most {}", o.total_batch,
          o.total_batch / static_cast<size_t>(o.seq_len), 1 << 30);
    if (!device_memory.empty()) {
        o.device_memory = parse_bytes("--device-memory", device_memory);
        CHECK(o.device_memory >= 1 << 20, "--device-memory {} is less than 1 MiB; expected a size such as 40G", device_memory);
    }
    for (const CLI::Option* option : of_plan) {
        CHECK(!*option || o.plan, "{} is for --plan only; how many processes train, and where, is their launcher's affair, such as mpirun -np 8",
              option->get_name());
    }
    o.machines.within = parse_link("--link", link);
    o.machines.between = parse_link("--network", network);
    o.values = values_of(app);
    o.values["weight-decay"] = o.weight_decay;
    return o;
}
