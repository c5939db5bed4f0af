#include "trainer/run/options.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>

#include "trainer/checkpoint/open_model.h"
#include "trainer/command_line/command_line.h"
#include "trainer/command_line/config_file.h"
#include "trainer/command_line/help_text.h"
#include "trainer/data/input_files.h"
#include "trainer/model/gpt2_config.h"
#include "trainer/run/own_options.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/tokenizer_files.h"

namespace {

const std::map<std::string, Optimizer> optimizers = {{"adamw", Optimizer::adamw},
                                                     {"adam", Optimizer::adam},
                                                     {"sgd", Optimizer::sgd},
                                                     {"rmsprop", Optimizer::rmsprop}};
const std::map<std::string, Recompute> recomputes = {
    {"none", Recompute::none}, {"gelu", Recompute::gelu}, {"block", Recompute::block}};
const std::map<std::string, DType> reduce_dtypes = {{"fp32", DType::fp32}, {"bf16", DType::bf16}};

const Finetuning finetuning;
constexpr double below_1 = 0.9999999;
// of a name or a link: a longer one is none, and an error shows so much of it
constexpr size_t most_letters = 60;

// A number if that is what the option takes: .5 and 007 too, which are none in JSON.
nlohmann::json json_of(const CLI::Option& option, const std::string& text) {
    const std::string kind = option.get_type_name();
    if (kind == "N" || kind == "N|auto" || kind == "X") {
        const nlohmann::json number = nlohmann::json::parse(text, nullptr, false);
        if (number.is_number()) return number;
        if (const std::optional<double> value = parse_number<double>(text)) return *value;
    }
    return text;
}

// Every option by its name, with the value it was given or its default: what the run's first line of metrics
// shows.
nlohmann::json values_of(const CLI::App& app) {
    nlohmann::json values = nlohmann::json::object();
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_lnames().empty() || !option->get_configurable()) continue;
        if (option->get_items_expected_max() == 0) {
            values[option->get_lnames().front()] = option->as<bool>();  // --flag=false is false
            continue;
        }
        const std::string text = option->count() > 0 ? option->results().front() : option->get_default_str();
        values[option->get_lnames().front()] = json_of(*option, text);
    }
    for (const CLI::App* group : app.get_subcommands(nullptr)) values.update(values_of(*group));
    return values;
}

}  // namespace

StepShape Options::step_shape() const {
    StepShape step{
        .config = config, .seq_len = seq_len, .most_sequences = batch_size, .total_batch = total_batch};
    step.recompute_block = recompute == Recompute::block;
    step.zero = zero;
    step.gradients = reduce_dtype == DType::bf16 ? Collective::bf16 : Collective::fp32;
    step.parameters = dtype == DType::bf16 ? Collective::bf16 : Collective::fp32;
    // What llm.c reaches with 124M on an A100 is 175 TFLOP/s.
    step.tokens_per_second =
        tokens_per_second > 0 ? tokens_per_second : 156e12 / flops_per_token(config, seq_len);
    return step;
}

int Options::step_count(uint64_t windows) const {
    double count = steps;
    if (epochs > 0)
        count =
            std::ceil(epochs * static_cast<double>(windows) / (static_cast<double>(total_batch) / seq_len));
    if (tokens > 0) count = std::ceil(static_cast<double>(tokens) / static_cast<double>(total_batch));
    CHECK(count <= 1 << 30, "a run of {:.3g} steps; expected at most {}", count, 1 << 30);
    return static_cast<int>(count);
}

namespace {

// words: the command line. own: of the run that goes on, behind them.
std::optional<Options> parse_words(const std::vector<std::string>& words, const std::vector<std::string>& own,
                                   const Process& process) {
    Options o;
    o.world_size = process.world_size;
    o.rank = process.rank;
    o.machines.within = parse_link("--link", "nvlink3");
    o.machines.between = parse_link("--network", "hdr8");
    const auto set_model = [&](const std::string& text) {
        try {
            GPT2Config::named(text.substr(0, most_letters));
        } catch (const UsageError& unknown) { throw UsageError(fmt::format("--model: {}", unknown.what())); }
        o.model = text;
    };
    const auto set_batch_size = [&](const std::string& text) {
        if (text == "auto") o.batch_size = 0;
        else if (const auto number = parse_number<int>(text);
                 number && *number >= 1 && *number <= max_batch_size)
            o.batch_size = *number;
        else
            throw UsageError(refusal_of("--batch-size", text,
                                        fmt::format("a whole number from 1 to {}, or auto", max_batch_size)));
    };
    const auto set_device_memory = [&](const std::string& text) {
        o.device_memory = parse_bytes("--device-memory", text);
        CHECK(o.device_memory >= 1 << 20,
              "--device-memory {} is less than 1 MiB; expected a size such as 40G", text);
    };
    CLI::App app("Trains GPT-2 and GPT-3 models. Without options: a small byte-level model on Shakespeare.",
                 "train_gpt2");
    app.set_config("--config", "", "read options from a file, one a line, such as: lr = 0.0006")
        ->type_name("FILE")
        ->each(check_config_path);

    auto* data = app.add_option_group("data");
    std::vector<std::string> train_data, val_data;
    auto* train = add_texts(
        *data, "-i,--train-data", train_data, "FILE...",
        "what to train on: token shards, texts, folders of them, or patterns [the Shakespeare text]");
    auto* val = add_texts(*data, "-j,--val-data", val_data, "FILE...",
                          "what to validate on, in the same forms [the last tenth of the texts]");
    add_word_or_file(*data, "--tokenizer", o.tokenizer, tokenizer_words,
                     "how texts become tokens: FILE is a tokenizer.json; none: token shards only [byte, gpt2 "
                     "or none, by the vocabulary]");
    add_word(*data, "--data-order", o.data_order, {"shuffled", "file"},
             "order in which an epoch takes its samples");

    auto* model = app.add_option_group("model");
    auto* named = add_parsed(*model, "-e,--model", "NAME", "", set_model,
                             "a named size instead of the sizes below: d12, gpt2, gpt2-medium, gpt2-large, "
                             "gpt2-xl, gpt3:c768, ...");
    auto* layers = add_number(*model, "--layers", o.config.L, 1, 4096, "number of transformer blocks");
    auto* heads = add_number(*model, "--heads", o.config.NH, 1, 4096, "number of attention heads");
    auto* channels = add_number(*model, "--channels", o.config.C, 1, 1 << 17,
                                "width of the model, a multiple of the heads");
    auto* context = add_number(*model, "--context", o.config.context, 1, 1 << 20,
                               "longest sequence that the model can see");
    auto* vocab = add_number(*model, "--vocab", o.config.V, 1, 65536, "number of tokens in the vocabulary");
    auto* init_from =
        add_text(*model, "--init-from", o.init_from, "PATH",
                 fmt::format("start from these weights, with their model's shape: {} [random weights]",
                             model_path_help));

    auto* batch = app.add_option_group("batch");
    add_parsed(*batch, "-b,--batch-size", "N|auto", std::to_string(o.batch_size), set_batch_size,
               "sequences in a micro-step; auto: as many as fit and divide the step");
    add_number(*batch, "-t,--seq-len", o.seq_len, 1, most, "tokens in a sequence [the context]")
        ->default_str("");
    add_number(*batch, "-d,--total-batch", o.total_batch, 1, size_t{1} << 40,
               "tokens in a step, over all its micro-steps and processes [one micro-step]")
        ->default_str("");

    auto* optimizer = app.add_option_group("optimizer");
    add_choice(*optimizer, "--optimizer", o.optimizer, optimizers,
               "update rule, as the class of that name in torch.optim has it");
    auto* lr = add_number(*optimizer, "-l,--lr", o.lr, 0, 1e30,
                          fmt::format("peak learning rate; {} with --init-from", finetuning.lr));
    add_number(*optimizer, "-q,--min-lr-fraction", o.min_lr_fraction, 0, 1,
               "learning rate at the end, as a fraction of the peak");
    auto* warmup = add_number(
        *optimizer, "-u,--warmup", o.warmup, 0, most,
        fmt::format(
            "steps in which the learning rate rises to its peak; {} with --init-from or --schedule constant",
            finetuning.warmup));
    auto* schedule =
        add_word(*optimizer, "-k,--schedule", o.schedule, {"cosine", "linear", "constant", "wsd"},
                 fmt::format("how the learning rate falls after warmup; wsd stays constant, then falls as 1 "
                             "- sqrt over the last fifth; "
                             "{} with --init-from",
                             finetuning.schedule));
    auto* weight_decay = add_number(*optimizer, "-c,--weight-decay", o.weight_decay, 0, 1e30,
                                    "for tensors of two or more dimensions: decoupled with adamw, added to "
                                    "the gradient otherwise [0.1 with adamw, otherwise 0]")
                             ->default_str("");
    auto* beta1 = add_number(*optimizer, "--beta1", o.beta1, 0, below_1,
                             "decay of the mean of gradients; adamw and adam only");
    auto* beta2 = add_number(*optimizer, "--beta2", o.beta2, 0, below_1,
                             fmt::format("decay of the mean of squared gradients, which rmsprop calls alpha; "
                                         "not for sgd; {} with --init-from",
                                         finetuning.beta2));
    auto* eps = add_number(*optimizer, "--eps", o.eps, 1e-30, 1,
                           // 0 would divide 0 by 0 in the padded rows of wte
                           "added to the denominator of the update; not for sgd");
    auto* momentum = add_number(*optimizer, "--momentum", o.momentum, 0, below_1,
                                "momentum of the update; sgd and rmsprop only");
    auto* nesterov = optimizer->add_flag("--nesterov", o.nesterov, "use Nesterov's momentum; sgd only");
    add_number(*optimizer, "--clip", o.clip, 0, 1e30, "scale the gradient down to this norm; 0: never");
    add_number(*optimizer, "--max-skipped", o.max_skipped, 1, most,
               "end the run after this many steps in a row whose gradient norm is not finite");
    add_number(*optimizer, "--skip-loss-z", o.skip_loss_z, 0, 1e30,
               "skip the update of a step whose loss is this many standard deviations above the mean of the "
               "last 128; 0: never");
    add_number(*optimizer, "--skip-norm-z", o.skip_norm_z, 0, 1e30,
               "the same for the gradient norm; steps skipped by either do not count for --max-skipped");

    auto* length = app.add_option_group("length");
    auto* steps = add_number(*length, "-x,--steps", o.steps, 1, most,
                             fmt::format("steps to train; {:g} epochs with --init-from", finetuning.epochs));
    auto* epochs = add_number(*length, "--epochs", o.epochs, 1e-9, 1e9,
                              "passes over the training data, instead of --steps")
                       ->default_str("");
    auto* tokens = add_number(*length, "--tokens", o.tokens, 1, size_t{1} << 60,
                              "tokens to train on, instead of --steps")
                       ->default_str("");
    steps->excludes(epochs)->excludes(tokens);
    epochs->excludes(tokens);

    auto* evaluation = app.add_option_group("evaluation");
    add_number(*evaluation, "-v,--val-every", o.val_every, 0, most, "steps between validations; 0: never");
    add_number(*evaluation, "-m,--val-steps", o.val_steps, 0, most,
               "batches in a validation; 0: all of the validation data");
    add_text(*evaluation, "--hellaswag", o.hellaswag, "FILE",
             "file of HellaSwag to score the model with: the published .jsonl, or llm.c's .bin [none]");
    add_number(*evaluation, "--hellaswag-every", o.hellaswag_every, 0, most,
               "steps between HellaSwag scores; 0: never");
    add_number(*evaluation, "-s,--sample-every", o.sample_every, 0, most, "steps between samples; 0: never");
    add_number(*evaluation, "-g,--sample-tokens", o.sample_tokens, 1, most, "tokens in a sample");

    auto* output = app.add_option_group("output");
    add_text(*output, "-o,--out", o.out, "DIR",
             "folder for everything that the run writes [a new one in runs/]");
    add_number(*output, "--log-every", o.log_every, 1, most, "steps between lines on the terminal");
    add_number(*output, "--log-layer-norms", o.log_layer_norms, 0, most,
               "steps between records of each layer's gradient and weight norms in metrics.jsonl; 0: never");
    add_number(*output, "-n,--checkpoint-every", o.checkpoint_every, 0, most,
               "steps between checkpoints; the last step is saved too; 0: no checkpoints at all");
    add_number(*output, "--keep", o.keep, 1, most,
               "how many of the newest checkpoints to keep, besides the best validated one");
    add_number(*output, "--keep-every", o.keep_every, 0, most,
               "also keep the checkpoint of every Nth step; 0: none");
    add_text(*output, "--resume", o.resume, "PATH",
             "none; auto: go on from the newest checkpoint in --out, or begin if there is none; or the "
             "folder of a run or of a checkpoint, which goes on "
             "with the run's own options where none are given");

    auto* system = app.add_option_group("system");
    add_choice(*system, "--dtype", o.dtype, dtypes, "type of parameters and activations");
    system->add_flag("--deterministic", o.deterministic,
                     "give the same bits when a run is repeated; slower on a GPU, always so on a CPU");
    add_number(*system, "--seed", o.seed, 0, UINT64_MAX,
               "seed of the weights, the order of the data, and the samples");
    add_choice(*system, "--recompute", o.recompute, recomputes,
               "what the backward pass computes again instead of keeping it in memory");
    add_choice(*system, "--attention", o.attention, attentions, "implementation of attention");
    add_number(*system, "--head-chunks", o.head_chunks, 1, most,
               "compute the logits of a micro-step in this many parts, one after another, to save memory");
    add_number(
        *system, "--zero", o.zero, 0, 1,
        "1: each process keeps and updates only its part of the optimizer state; the results stay the same");
    add_choice(*system, "--reduce-dtype", o.reduce_dtype, reduce_dtypes,
               "type in which processes send each other gradients");
    add_number(
        *system, "--comm-timeout", o.comm_timeout, 0.1, 1e6,
        "seconds that processes wait for another one before they give up, also at the start and at the end");
    add_number(*system, "--check-replicas", o.check_replicas, 0, most,
               "steps between checks that all processes have the same parameters; 0: never");
    add_number(
        *system, "--profile", o.profile, 1, most,
        fmt::format(
            "measure every operation in this many steps, after the first {}; print a table and go on [none]",
            Profile::warm_up))
        ->default_str("");
    system->add_flag("--no-graph", o.no_graph,
                     "launch kernels one by one instead of as CUDA graphs; GPUs only");
    system->add_flag("--plan", o.plan,
                     "print the memory plan, with --world-size also how the run would scale, and stop");
    add_parsed(*system, "--device-memory", "SIZE", "", set_device_memory,
               "plan for this much memory, such as 40G, instead of what is free");
    const CLI::Option* of_plan[] = {
        add_number(*system, "--world-size", o.world_size, 1, 1 << 16,
                   "with --plan: plan for this many processes, one for each GPU"),
        add_number(*system, "--gpus-per-machine", o.machines.per_machine, 1, 1 << 16,
                   "with --plan: how many GPUs a machine has"),
        add_parsed(
            *system, "--link", "LINK", "nvlink3",
            [&](const std::string& text) {
                o.machines.within = parse_link("--link", text.substr(0, most_letters));
            },
            fmt::format("with --plan: the link between GPUs of a machine: {}, or GB/s and microseconds such "
                        "as 235,3.4",
                        known_links())),
        add_parsed(
            *system, "--network", "LINK", "hdr8",
            [&](const std::string& text) {
                o.machines.between = parse_link("--network", text.substr(0, most_letters));
            },
            "with --plan: the link between machines, all cards of a machine together; the same names, or "
            "GB/s and microseconds"),
        add_number(*system, "--tokens-per-second", o.tokens_per_second, 1e-3, 1e12,
                   "with --plan: the measured speed of one process alone [that of 156 TFLOP/s, half an A100]")
            ->default_str(""),
    };

    set_examples(
        app, {{"a model of the bytes of a text, which holds out its last tenth",
               "train_gpt2 --train-data my_book.txt --out runs/book"},
              {"GPT-2 goes on learning from a folder of notes",
               "train_gpt2 --init-from gpt2 --train-data notes --seq-len 512"},
              {"a run goes on where it ended, for longer", "train_gpt2 --resume runs/book --steps 4000"}});

    std::vector<const char*> argv;
    for (const auto* some : {&words, &own})
        for (const std::string& word : *some) argv.push_back(word.c_str());
    if (!parse(app, static_cast<int>(argv.size()), argv.data())) return std::nullopt;
    const bool goes_on = o.resume != "none" && o.resume != "auto";  // as that run was
    if (own.empty() && goes_on) {
        const std::vector<std::string> of_run = own_options(app, o.resume);
        if (!of_run.empty()) return parse_words(words, of_run, process);
    }

    if (*train) o.train_data = one_pattern("--train-data", train_data);
    if (*val) o.val_data = one_pattern("--val-data", val_data);
    if (*named) {
        for (const CLI::Option* size : {layers, heads, channels}) {
            CHECK(!*size, "--model {} and {} exclude each other; expected the name or the sizes", o.model,
                  size->get_name());
        }
        const int own_context = o.config.context, own_vocab = o.config.V;
        o.config = GPT2Config::named(o.model);
        if (*context) o.config.context = own_context;
        if (*vocab) o.config.V = own_vocab;
    }
    if (*init_from) {
        for (const CLI::Option* size : {named, layers, heads, channels, vocab}) {
            CHECK(!*size, "--init-from and {} exclude each other; the model's shape is that of {}",
                  size->get_name(), o.init_from);
        }
        const int own_context = o.config.context;
        o.initial = open_model(o.init_from);
        o.config = o.initial->config();
        if (*context) {
            CHECK(own_context <= o.config.context,
                  "--context {} is longer than the context of {} in {}; expected at most that", own_context,
                  o.config.context, o.initial->path());
            o.config.context = own_context;
        }
        if (o.tokenizer.empty()) o.tokenizer = tokenizer_name(*o.initial);
    }
    if (*init_from && !goes_on) {
        if (!*lr) o.lr = finetuning.lr;
        if (!*warmup) o.warmup = finetuning.warmup;
        if (!*schedule) o.schedule = finetuning.schedule;
        if (!*beta2 && o.optimizer != Optimizer::rmsprop) o.beta2 = finetuning.beta2;
        if (!*steps && !*epochs && !*tokens) o.epochs = finetuning.epochs;
    }
    if (o.schedule == "constant" && !*warmup && !goes_on) o.warmup = 0;
    // Like torch.optim, whose classes know no arguments of another: what would have no effect is refused.
    const auto belongs = [&](const CLI::Option* option, std::initializer_list<Optimizer> owners) {
        CHECK(!*option || std::find(owners.begin(), owners.end(), o.optimizer) != owners.end(),
              "{} has no effect on --optimizer {}; please leave it out", option->get_name(),
              name_of(optimizers, o.optimizer));
    };
    belongs(beta1, {Optimizer::adamw, Optimizer::adam});
    belongs(beta2, {Optimizer::adamw, Optimizer::adam, Optimizer::rmsprop});
    belongs(eps, {Optimizer::adamw, Optimizer::adam, Optimizer::rmsprop});
    belongs(momentum, {Optimizer::sgd, Optimizer::rmsprop});
    belongs(nesterov, {Optimizer::sgd});
    CHECK(!o.nesterov || o.momentum > 0, "--nesterov needs a --momentum above 0, such as 0.9");
    if (!*weight_decay && o.optimizer != Optimizer::adamw) o.weight_decay = 0;

    if (o.tokenizer.empty()) o.tokenizer = default_tokenizer(o.config.V);
    if (!*vocab && !*named && !*init_from && o.tokenizer == "gpt2") o.config.V = gpt2_vocab_size;
    if (!*vocab && !*init_from && !is_tokenizer_word(o.tokenizer))
        o.config.V = make_tokenizer(o.tokenizer)->vocab_size();
    o.config.check();

    if (o.seq_len == 0) o.seq_len = o.config.context;
    CHECK(o.seq_len <= o.config.context,
          "--seq-len {} is longer than the context of {}; expected at most the context", o.seq_len,
          o.config.context);
    if (o.batch_size == 0) {
        if (o.total_batch == 0)
            throw UsageError(
                "--batch-size auto needs --total-batch: the tokens of a step that micro-steps divide");
    } else {
        CHECK(o.batch_size <= INT_MAX / o.seq_len,
              "--batch-size {} makes {} tokens a micro-step; expected at most {}", o.batch_size,
              int64_t{o.batch_size} * o.seq_len, INT_MAX);
        if (o.total_batch == 0) o.total_batch = o.micro_batch_tokens();
        const size_t micro = o.micro_batch_tokens(), below = o.total_batch / micro * micro;
        CHECK(o.total_batch == below,
              "--total-batch {} is not a multiple of a micro-step's {} x {}{} = {} tokens; {}{} would be",
              o.total_batch, o.batch_size, o.seq_len,
              o.world_size == 1 ? "" : fmt::format(" x {} processes", o.world_size), micro,
              below == 0 ? "" : fmt::format("{} or ", below), below + micro);
    }
    CHECK(o.total_batch % static_cast<size_t>(o.seq_len) == 0,
          "--total-batch {} is not a multiple of the {} tokens of a sequence", o.total_batch, o.seq_len);
    CHECK(o.total_batch / static_cast<size_t>(o.seq_len) % static_cast<size_t>(o.world_size) == 0,
          "the {} sequences of a step do not divide among {} processes; expected --total-batch to be a "
          "multiple of {} tokens",
          o.total_batch / static_cast<size_t>(o.seq_len), o.world_size,
          static_cast<size_t>(o.seq_len) * static_cast<size_t>(o.world_size));
    CHECK(o.total_batch / static_cast<size_t>(o.seq_len) <= 1 << 30,
          "--total-batch {} is {} sequences; expected at most {}", o.total_batch,
          o.total_batch / static_cast<size_t>(o.seq_len), 1 << 30);
    for (const CLI::Option* option : of_plan) {
        CHECK(!*option || o.plan,
              "{} is for --plan only; how many processes train, and where, is their launcher's affair, such "
              "as mpirun -np 8",
              option->get_name());
    }
    o.values = values_of(app);
    o.values["train-data"] = o.train_data;
    o.values["val-data"] = o.val_data;
    // Their defaults depend on other options.
    o.values["weight-decay"] = o.weight_decay;
    o.values["lr"] = o.lr;
    o.values["warmup"] = o.warmup;
    o.values["schedule"] = o.schedule;
    o.values["beta2"] = o.beta2;
    if (o.epochs > 0) o.values["epochs"] = o.epochs;
    return o;
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, const Process& process) {
    return parse_words({argv, argv + argc}, {}, process);
}
