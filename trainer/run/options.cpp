#include "trainer/run/options.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <set>

#include "system/json_text.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/command_line/help_text.h"
#include "trainer/engine/model_config.h"
#include "trainer/models/families.h"
#include "trainer/run/add_options.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/tokenizer_files.h"

OptimizerOptions Options::optimizer_at(double learning_rate) const {
    const OptimizerChoice& c = optimizer;
    OptimizerOptions of_step = {learning_rate,  c.beta1, c.beta2,    c.eps,
                                c.weight_decay, c.clip,  c.momentum, c.nesterov};
    of_step.muon_scale = c.muon_scale;
    if (c.kind == Optimizer::muon)
        of_step.rates = {1, c.embedding_lr / c.lr, c.head_lr / c.lr, c.vector_lr / c.lr};
    return of_step;
}

int Options::step_count(uint64_t windows) const {
    const double total = static_cast<double>(batch.total);
    double count = length.steps;
    if (length.epochs > 0)
        count = std::ceil(length.epochs * static_cast<double>(windows) / (total / batch.seq_len));
    if (length.tokens > 0) count = std::ceil(static_cast<double>(length.tokens) / total);
    CHECK(count <= 1 << 30, "the run would have {:.3g} steps; expected at most {}", count, 1 << 30);
    return static_cast<int>(count);
}

namespace {

// Answers which options were given, after the command line was parsed.
class Given {
public:
    explicit Given(const CLI::App& app) : app_(app) {}
    bool operator()(const std::string& name) const { return app_.get_option(name)->count() > 0; }
    bool any(std::initializer_list<const char*> names) const {
        return std::any_of(names.begin(), names.end(), [&](const char* name) { return (*this)(name); });
    }

private:
    const CLI::App& app_;
};

// A number if the option takes one. This includes .5 and 007, which are not numbers in JSON.
nlohmann::json json_of(const CLI::Option& option, const std::string& text) {
    const std::string kind = option.get_type_name();
    if (kind == "N" || kind == "N|auto" || kind == "X") {
        const nlohmann::json number = nlohmann::json::parse(text, nullptr, false);
        if (number.is_number()) return number;
        if (const std::optional<double> value = parse_number<double>(text)) return *value;
    }
    return text;
}

// Every option by name, with the given value or its default, for metrics.jsonl and state.json.
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

// An option's value in metrics and checkpoints: a string, or an array of several; "" if it was not given.
nlohmann::json value_of(const std::vector<std::string>& words) {
    return words.size() > 1 ? nlohmann::json(words) : nlohmann::json(words.empty() ? "" : words[0]);
}

// The values as parsed, with the final values of options whose default depends on others.
nlohmann::json final_values(const CLI::App& app, const Options& o) {
    nlohmann::json values = values_of(app);
    values["train-data"] = value_of(o.data.train);
    values["val-data"] = value_of(o.data.val);
    values["tokenizer"] = o.data.tokenizer;
    values["seq-len"] = o.batch.seq_len;
    values["total-batch"] = o.batch.total;
    values["weight-decay"] = o.optimizer.weight_decay;
    values["lr"] = o.optimizer.lr;
    values["warmup"] = o.optimizer.warmup;
    values["schedule"] = o.optimizer.schedule;
    values["beta2"] = o.optimizer.beta2;
    if (o.optimizer.schedule == "wsd") values["cooldown"] = o.optimizer.cooldown;
    values["cooldown-shape"] = o.optimizer.cooldown_shape;
    if (o.optimizer.kind == Optimizer::muon) {
        values["beta1"] = o.optimizer.beta1;
        values["eps"] = o.optimizer.eps;
        values["momentum"] = o.optimizer.momentum;
        values["embedding-lr"] = o.optimizer.embedding_lr;
        values["head-lr"] = o.optimizer.head_lr;
        values["vector-lr"] = o.optimizer.vector_lr;
    }
    if (o.length.epochs > 0) values["epochs"] = o.length.epochs;
    if (o.length.epochs > 0 || o.length.tokens > 0) values["steps"] = "";
    values.update(sizes_of(o.model.config));
    return values;
}

// --model sets the sizes; those options that are given replace the named ones.
void resolve_named_model(Options& o, const Given& given) {
    const ModelConfig sizes = o.model.config;
    ModelConfig& config = o.model.config;
    if (given("--model")) {
        config = named_model(o.model.name);
        if (given("--context")) config.context = sizes.context;
        if (given("--vocab")) config.V = sizes.V;
    }
    for (const auto& [family, chosen] :
         {std::pair("qwen3", o.model.qwen3), std::pair("nanochat", o.model.nanochat)}) {
        if (!chosen) continue;
        CHECK(!given("--model") || config.family == family,
              "--{} has no effect on --model {}; expected one such as {}, or none", family, o.model.name,
              family_of({.family = family}).sizes.begin()->first);
        config.family = family;
    }
    CHECK(!o.model.untied || config.family != "nanochat",
          "--untied has no effect on a nanochat, whose head always has weights of its own; leave it out");
    const auto of_llama = [&](const char* option) {
        if (!given(option)) return false;
        CHECK(!given("--model") || config.family != "gpt2",
              "{} has no effect on --model {}; expected a Llama, such as llama:d12", option, o.model.name);
        if (config.family == "gpt2") config.family = "llama";
        return true;
    };
    if (of_llama("--kv-heads")) config.NKV = sizes.NKV;
    if (of_llama("--hidden")) config.H = sizes.H;
    if (of_llama("--head-size")) config.head_size = sizes.head_size;
    if (of_llama("--rope-theta")) config.rope_theta = sizes.rope_theta;
    if (of_llama("--norm-eps")) config.norm_eps = sizes.norm_eps;
    if (o.model.untied && of_llama("--untied")) config.tied = false;
    config = family_of(config).complete(config);
}

// --init-from sets the shape and the tokenizer to the model's; the context may be shorter.
void resolve_initial_model(Options& o, const Given& given) {
    if (!given("--init-from")) return;
    const int own_context = o.model.config.context;
    o.model.initial = open_model(o.model.init_from);
    o.model.config = o.model.initial->config();
    if (given("--context")) {
        CHECK(own_context <= o.model.config.context,
              "--context {0} is longer than the context of {1} in {2}; expected at most {1}", own_context,
              o.model.config.context, o.model.initial->path());
        o.model.config.context = own_context;
    }
    if (o.data.tokenizer.empty()) o.data.tokenizer = tokenizer_name(*o.model.initial);
}

void resolve_tokenizer(Options& o, const Given& given) {
    if (o.data.tokenizer.empty()) o.data.tokenizer = default_tokenizer(o.model.config.V);
    const bool is_gpt2 = o.data.tokenizer == "gpt2" || o.data.tokenizer == "gpt2-eot";
    const bool has_shape = given.any({"--vocab", "--init-from"});
    if (!has_shape && !given("--model") && is_gpt2) o.model.config.V = gpt2_vocab_size;
    if (!has_shape && !is_tokenizer_word(o.data.tokenizer))
        o.model.config.V = make_tokenizer(o.data.tokenizer)->vocab_size();
    family_of(o.model.config).check(o.model.config);
}

// With match-rms AdamW's rates and decay suit every tensor, so all that --lr and the schedule do is as with
// AdamW; otherwise the rates are the family's.
void resolve_muon(Options& o, const Given& given, bool goes_on) {
    OptimizerChoice& c = o.optimizer;
    const MuonSchedule usual;
    const FamilyDescription& family = family_of(o.model.config);
    const MuonDefaults defaults = given("--init-from") ? family.muon_finetuning : family.muon;
    const auto set = [&](const char* option, auto& target, const auto& value) {
        if (!given(option)) target = value;
    };
    const bool as_adamw = c.muon_scale == MuonScale::match_rms;
    if (!goes_on) {
        set("--momentum", c.momentum, usual.momentum);
        set("--beta1", c.beta1, defaults.beta1);
        set("--beta2", c.beta2, defaults.beta2);
        set("--eps", c.eps, defaults.eps);
        if (!as_adamw) set("--lr", c.lr, defaults.lr);
        if (!as_adamw && !given("--init-from")) {
            set("--schedule", c.schedule, usual.schedule);
            set("--warmup", c.warmup, usual.warmup);
        }
    }
    set("--embedding-lr", c.embedding_lr, as_adamw ? c.lr : defaults.embedding_lr);
    set("--head-lr", c.head_lr, as_adamw ? c.lr : defaults.head_lr);
    set("--vector-lr", c.vector_lr, as_adamw ? c.lr : defaults.vector_lr);
    if (as_adamw || c.schedule != "wsd") return;
    set("--cooldown", c.cooldown, usual.cooldown);
    set("--cooldown-shape", c.cooldown_shape, usual.cooldown_shape);
}

// goes_on: a run is resumed, whose own options replace those that were not given.
void resolve_defaults(Options& o, const Given& given, bool goes_on) {
    const Finetuning finetuning;
    OptimizerChoice& c = o.optimizer;
    if (given("--init-from") && !goes_on) {
        if (!given("--lr")) c.lr = finetuning.lr;
        if (!given("--warmup")) c.warmup = finetuning.warmup;
        if (!given("--schedule")) c.schedule = finetuning.schedule;
        if (!given("--beta2") && c.kind != Optimizer::rmsprop) c.beta2 = finetuning.beta2;
        if (!given.any({"--steps", "--epochs", "--tokens"})) o.length.epochs = finetuning.epochs;
    }
    if (c.kind == Optimizer::muon) resolve_muon(o, given, goes_on);
    if (c.schedule == "constant" && !given("--warmup") && !goes_on) c.warmup = 0;
    const bool decays =
        c.kind == Optimizer::adamw || (c.kind == Optimizer::muon && c.muon_scale == MuonScale::match_rms);
    if (!given("--weight-decay") && !decays) c.weight_decay = 0;
}

// An option without effect is an error, as in torch.optim, where a class takes only its own arguments.
void check_optimizer(const Options& o, const Given& given) {
    const Optimizer kind = o.optimizer.kind;
    const auto belongs = [&](const char* option, std::initializer_list<Optimizer> owners) {
        CHECK(!given(option) || std::find(owners.begin(), owners.end(), kind) != owners.end(),
              "{} has no effect with --optimizer {}; leave it out", option, name_of(kind));
    };
    using enum Optimizer;
    belongs("--beta1", {adamw, adam, muon});
    belongs("--beta2", {adamw, adam, rmsprop, muon});
    belongs("--eps", {adamw, adam, rmsprop, muon});
    belongs("--momentum", {sgd, rmsprop, muon});
    belongs("--nesterov", {sgd});
    for (const char* option : {"--embedding-lr", "--head-lr", "--vector-lr", "--muon-scale"})
        belongs(option, {muon});
    CHECK(kind != muon || o.optimizer.lr >= 1e-30,
          "--lr {} with --optimizer muon: --embedding-lr, --head-lr and --vector-lr follow the schedule in "
          "proportion to it; expected at least 1e-30",
          o.optimizer.lr);
    for (const char* option : {"--cooldown", "--cooldown-shape"})
        CHECK(!given(option) || o.optimizer.schedule == "wsd",
              "{} has no effect with --schedule {}; leave it out", option, o.optimizer.schedule);
    CHECK(!o.optimizer.nesterov || o.optimizer.momentum > 0,
          "--nesterov needs a --momentum above 0, such as 0.9");
}

// Sets the tokens of a step and checks that they are a whole number of micro-steps.
void resolve_micro_step(Options& o) {
    BatchChoice& b = o.batch;
    if (b.size == 0) {
        CHECK(b.total > 0, "--batch-size auto needs --total-batch, the number of tokens in a step");
        return;
    }
    CHECK(b.size <= INT_MAX / b.seq_len,
          "--batch-size {} makes a micro-step of {} tokens; expected at most {}", b.size,
          int64_t{b.size} * b.seq_len, INT_MAX);
    if (b.total == 0) b.total = o.micro_batch_tokens();
    const size_t micro = o.micro_batch_tokens(), below = b.total / micro * micro;
    CHECK(b.total == below,
          "--total-batch {} is not a multiple of a micro-step's {} x {}{} = {} tokens; {}{} would be",
          b.total, b.size, b.seq_len, o.world_size == 1 ? "" : fmt::format(" x {} processes", o.world_size),
          micro, below == 0 ? "" : fmt::format("{} or ", below), below + micro);
}

void resolve_batch(Options& o) {
    BatchChoice& b = o.batch;
    if (b.seq_len == 0) b.seq_len = o.model.config.context;
    CHECK(b.seq_len <= o.model.config.context,
          "--seq-len {} is longer than the context of {}; expected at most the context", b.seq_len,
          o.model.config.context);
    resolve_micro_step(o);
    const auto sequence = static_cast<size_t>(b.seq_len), processes = static_cast<size_t>(o.world_size);
    CHECK(b.total % sequence == 0, "--total-batch {} is not a multiple of the {} tokens of a sequence",
          b.total, b.seq_len);
    CHECK(b.total / sequence % processes == 0,
          "the {} sequences of a step do not divide among {} processes; expected --total-batch to be a "
          "multiple of {} tokens",
          b.total / sequence, processes, sequence * processes);
    CHECK(b.total / sequence <= 1 << 30, "--total-batch {} is {} sequences; expected at most {}", b.total,
          b.total / sequence, 1 << 30);
}

// The checkpoint folders that path stands for, newest first.
std::vector<std::string> checkpoints_of(const std::string& path) {
    if (!is_run_folder(path)) return {path};
    std::vector<std::string> paths;
    for (const CheckpointFolder& folder : checkpoint_folders(path, CheckpointNames::temporary_too))
        paths.insert(paths.begin(), folder.path);
    return paths;
}

std::optional<TrainingState> newest_state(const std::vector<std::string>& checkpoints) {
    for (const std::string& checkpoint : checkpoints) {
        try {
            return read_state(checkpoint);
        } catch (const Error&) {}  // an older one is tried
    }
    return std::nullopt;
}

// The value of --tokenizer for that name: the name itself if it is a word, else the tokenizer's file in the
// newest checkpoint in which it is whole.
std::string place_of_tokenizer(const std::string& name, const std::vector<std::string>& checkpoints) {
    if (is_tokenizer_word(name)) return name;
    for (const std::string& checkpoint : checkpoints) {
        try {
            const std::string file = tokenizer_in(checkpoint);
            if (file.empty()) continue;
            const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(file);
            if (tokenizer->name() == name || tokenizer->former_name() == name) return file;
        } catch (const Error&) {}  // damaged; an older one is tried
    }
    throw UsageError(fmt::format(
        "{}: no checkpoint has the files of the run's tokenizer {}; please name it with --tokenizer",
        checkpoints.front(), name));
}

// Decides which of a run's own options hold when it is resumed with others.
class OwnOptions {
public:
    // values: those of the run. given: options of the command line, by name.
    OwnOptions(const nlohmann::json& values, const std::map<std::string, std::string>& given)
        : values_(values), given_(given) {
        CHECK(before("optimizer") != "muon" || !changes("muon-scale") || given.contains("lr"),
              "--muon-scale {} without --lr: the run's --lr {} suits --muon-scale {}; expected --lr too",
              given.at("muon-scale"), before("lr"), before("muon-scale"));
    }
    bool holds(const std::string& name) const {
        if (given_.contains(name)) return false;
        if (name.starts_with("cooldown")) return before("schedule") == "wsd" && !changes("schedule");
        static const std::set<std::string> rates = {"embedding-lr", "head-lr", "vector-lr"},
                                           rules = {"momentum", "nesterov", "beta1",
                                                    "beta2",    "eps",      "muon-scale"};
        // With match-rms these are --lr unless they were given.
        if (rates.contains(name) && given_.contains("lr") && before("muon-scale") == "match-rms" &&
            before(name) == before("lr"))
            return false;
        // Another optimizer is refused, but not for these.
        return !(changes("optimizer") && (rates.contains(name) || rules.contains(name)));
    }

private:
    std::string before(const std::string& name) const {
        return values_.contains(name) ? plain_text(values_[name]) : "";
    }
    bool changes(const std::string& name) const {
        const auto found = given_.find(name);
        return found != given_.end() && values_.contains(name) && found->second != before(name);
    }
    const nlohmann::json& values_;
    const std::map<std::string, std::string>& given_;
};

// With --resume PATH, options that the command line leaves out take the values in the checkpoint's
// state.json, so that --resume PATH alone continues the run as it was. Returns them as words of a command
// line, such as "--lr=0.001". path is a checkpoint or a run's folder, whose newest checkpoint counts.
// Options that app was given, that a given option replaces, whose scope is start, or that only earlier
// versions had are left out. The model's shape and the tokenizer are separate words instead of --model and
// --init-from, so the resumed run no longer needs the model that it began with. Empty if path holds no
// readable checkpoint; resuming from it reports what is wrong. app must have been parsed.
std::vector<std::string> own_options(const CLI::App& app, const std::map<std::string, Scope>& scopes,
                                     const std::string& path) {
    const std::vector<std::string> checkpoints = checkpoints_of(path);
    const std::optional<TrainingState> state = newest_state(checkpoints);
    if (!state) return {};
    std::map<std::string, const CLI::Option*> known;
    std::map<std::string, std::string> given;
    for (const CLI::Option* option : options_of(app)) {
        if (option->get_lnames().empty()) continue;
        const std::string& name = option->get_lnames().front();
        known[name] = option;
        if (option->count() == 0) continue;
        given[name] = option->results().back();
        for (const CLI::Option* excluded : option->get_excludes())
            given.try_emplace(excluded->get_lnames().front());
    }
    nlohmann::json values = state->options;
    for (const auto& [name, value] : state->identity.items()) {
        if (name != "train-data") values[name] = value;  // its value there is a checksum
    }
    const OwnOptions own(values, given);
    std::vector<std::string> words;
    const auto add = [&](const std::string& name, const std::string& text) {
        std::error_code unknown;
        CHECK(text.find("\uFFFD") == text.npos || std::filesystem::exists(text, unknown),
              "--{0} of the run in {1} is not UTF-8 and not kept in its checkpoint; give --resume and --{0}",
              name, path);
        words.push_back(fmt::format("--{}={}", name, text));
    };
    for (const auto& [name, value] : values.items()) {
        const auto option = known.find(name);
        const auto scope = scopes.find(name);
        if (option == known.end() || scope == scopes.end() || !own.holds(name)) continue;
        if (scope->second == Scope::start) continue;
        if (value.is_array()) {
            for (const nlohmann::json& one : value) add(name, plain_text(one));
            continue;
        }
        const std::string text =
            name == "tokenizer" ? place_of_tokenizer(plain_text(value), checkpoints) : plain_text(value);
        const bool is_default = text.empty() || (option->second->get_items_expected_max() > 0
                                                     ? text == option->second->get_default_str()
                                                     : text == "false");
        // The defaults of these depend on the optimizer.
        const bool varies = name.starts_with("cooldown") && !text.empty();
        if (!is_default || varies) add(name, text);
    }
    return words;
}

// words: the command line. own: options of the run that is resumed, parsed after them.
std::optional<Options> parse_words(const std::vector<std::string>& words, const std::vector<std::string>& own,
                                   const Process& process) {
    Options o;
    o.world_size = process.world_size;
    o.rank = process.rank;
    CLI::App app(
        "Trains GPT-2, GPT-3, Llama, Qwen3 and nanochat. Without options: a model of bytes, on Shakespeare.",
        "train_gpt2");
    add_options(app, o);
    set_examples(app, {{"train a byte-level model on a text; its last tenth is for validation",
                        "train_gpt2 --train-data my_book.txt --out runs/book"},
                       {"finetune GPT-2 on a folder of notes",
                        "train_gpt2 --init-from gpt2 --train-data notes --seq-len 512"},
                       {"continue a run for more steps", "train_gpt2 --resume runs/book --steps 4000"}});
    std::vector<const char*> argv;
    for (const auto* some : {&words, &own})
        for (const std::string& word : *some) argv.push_back(word.c_str());
    if (!parse(app, static_cast<int>(argv.size()), argv.data())) return std::nullopt;
    const bool goes_on = o.output.resume != "none" && o.output.resume != "auto";
    if (own.empty() && goes_on) {
        const std::vector<std::string> of_run = own_options(app, o.scopes, o.output.resume);
        if (!of_run.empty()) return parse_words(words, of_run, process);
    }

    const Given given(app);
    resolve_named_model(o, given);
    resolve_initial_model(o, given);
    resolve_defaults(o, given, goes_on);
    check_optimizer(o, given);
    resolve_tokenizer(o, given);
    resolve_batch(o);
    CHECK(o.plan.only || !given("--world-size"),
          "--world-size is for --plan only; the number of processes that train is set by their launcher, "
          "such as mpirun -np 8");
    o.values = final_values(app, o);
    return o;
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, const Process& process) {
    return parse_words({argv, argv + argc}, {}, process);
}
