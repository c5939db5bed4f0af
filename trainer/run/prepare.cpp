#include "trainer/run/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <utility>

#include "kernels/simt/device.h"
#include "kernels/simt/pinned_memory.h"
#include "system/data_directory.h"
#include "system/error.h"
#include "system/print_line.h"
#include "system/printable.h"
#include "system/run_main.h"
#include "system/status_line.h"
#include "system/stop_signal.h"
#include "system/version.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/shard_tokenizer.h"
#include "trainer/models/families.h"
#include "trainer/models/model_file.h"
#include "trainer/run/disk_fit.h"
#include "trainer/run/memory_fit.h"
#include "trainer/run/replicas.h"

namespace {

// Short trials of a long run's options are common, so this is a note and not an error.
std::string note_of_warmup(const Schedule& schedule) {
    return fmt::format(
        "note: the warmup of {} steps is longer than the run of {}; the learning rate rises to {:.3g} "
        "instead of {:.3g}",
        schedule.warmup, schedule.steps, schedule.at(schedule.steps), schedule.lr);
}

std::string note_of_drop(const Schedule& schedule) {
    return fmt::format(
        "note: {} begins to fall before the warmup ends at step {}; there the learning rate drops from "
        "{:.3g} "
        "to {:.3g}",
        schedule.shape, schedule.warmup, schedule.lr, schedule.at(schedule.warmup + 1));
}

// Program, options and data, which must be equal on all ranks; otherwise they would train different models.
nlohmann::json process_description(const Options& o, const nlohmann::json& identity, const DataSplits& data) {
    nlohmann::json files = nlohmann::json::array();
    for (const auto* split : {&data.train, &data.val}) {
        for (const TokenShard& shard : *split)
            files.push_back({{"name", std::filesystem::path(shard.name()).filename().string()},
                             {"tokens", shard.size()}});
    }
    return {{"version", version},
            {"options", o.values},
            {"batch_size", o.batch.size},
            {"data", identity},
            {"files", files}};
}

size_t tokens_of(const std::vector<TokenShard>& shards) {
    return std::accumulate(shards.begin(), shards.end(), size_t{0},
                           [](size_t sum, const TokenShard& shard) { return sum + shard.size(); });
}

// Describes the data and the schedule in two lines, so that a mistake in the options is seen before the
// run takes hours.
std::string training_plan(const Options& o, const Schedule& schedule, const DataSplits& data,
                          uint64_t windows) {
    const size_t tokens = tokens_of(data.train), T = static_cast<size_t>(o.batch.seq_len),
                 trained = windows * T, left_out = tokens - trained;
    const double epochs = static_cast<double>(schedule.steps) * static_cast<double>(o.batch.total) /
                          static_cast<double>(trained);
    // The ends of a few shards are too little to mention.
    const std::string unused =
        left_out * 100 < tokens
            ? ""
            : fmt::format(" ({} of them fill no sequence of {} in their shards and are left out)", left_out,
                          T);
    const std::string end = schedule.shape == "constant" ? "constant"
                                                         : fmt::format("{} to {:.3g}", schedule.shape,
                                                                       schedule.lr * schedule.min_fraction);
    const bool masked = std::any_of(data.train.begin(), data.train.end(),
                                    [](const TokenShard& shard) { return shard.has_mask(); });
    return fmt::format(
        "data: {} tokens to train on{}{}, {} to validate\nschedule: {} steps ({:.3g} epochs), lr {:.3g}, "
        "warmup {}, {}",
        tokens, unused, masked ? " (masks say which count as targets)" : "",
        data.val.empty() ? "none" : std::to_string(tokens_of(data.val)), schedule.steps, epochs, schedule.lr,
        schedule.warmup, end);
}

// Notes if the run's checkpoints may not fit on the disk. Checkpoints that are already in the folder will
// be replaced by newer ones, so they are not counted.
template <class T>
void check_disk_space(const Options& o, const Model<T>& model, const ResumePoint& from, int steps,
                      const Note& say) {
    const std::optional<size_t> free = free_bytes(checkpoints_folder(from.run_folder));
    if (!free) return;
    const size_t bytes = checkpoint_bytes(model.table(), model.optimizer_buffers().size());
    const size_t count = most_checkpoints(o, from.step(), steps),
                 there = checkpoint_folders(from.run_folder).size();
    const std::string note = check_disk(from.run_folder, bytes, count - std::min(count, there), *free);
    if (!note.empty()) say(note);
}

std::vector<std::string> train_data(const Options& o) {
    return o.data.train.empty() ? std::vector{data_directory() + "/tinyshakespeare.txt"} : o.data.train;
}

// The run's length, unless its data decide it, and the work of a token. dev/expected_time.py reads both.
std::string length_plan(const Options& o) {
    // Recomputed blocks add a second forward pass, which is a third of a step's work.
    const double again = o.system.recompute == Recompute::block ? 4.0 / 3 : 1;
    const double flops = again * family_of(o.model.config).flops_per_token(o.model.config, o.batch.seq_len);
    std::string length = fmt::format("{:g} epochs of the training data", o.length.epochs);
    if (o.length.epochs == 0) {
        const int steps = o.step_count(0);
        const double tokens = static_cast<double>(steps) * static_cast<double>(o.batch.total);
        length = fmt::format("{} steps, {}", steps,
                             tokens < 1e8 ? fmt::format("{:.3f} million tokens", tokens * 1e-6)
                                          : fmt::format("{:.1f} billion tokens", tokens * 1e-9));
    }
    return fmt::format("run: {}\nwork: {:.0f} FLOP a token", length, flops);
}

// Says how many bytes a process sends in a step by each kind of collective, which is also how many it
// receives. dev/expected_time.py reads it.
std::string communication_plan(const Options& o, const TensorTable& table) {
    using enum Collective::Kind;
    const bool sharded = o.system.zero != 0;
    // One process updates such a matrix by Muon and sends it to all others.
    const auto owned = [&](const Bucket& b) { return sharded && b.is_whole(); };
    const auto matrices = std::count_if(table.buckets().begin(), table.buckets().end(), owned);
    const auto sent = [&](bool of_owned, Collective::Kind kind, DType type, const char* what) {
        const Collective::Element element = type == DType::bf16 ? Collective::bf16 : Collective::fp32;
        size_t bytes = 0;
        for (const Bucket& b : table.buckets()) {
            if (owned(b) == of_owned)
                bytes += Collective{kind, nullptr, b.elements, element}.bytes_sent(o.world_size);
        }
        return fmt::format("{:.1f} MiB of {} ({}, {})", static_cast<double>(bytes) / 0x1p20, what,
                           element == Collective::bf16 ? "bf16" : "fp32",
                           kind == all_reduce       ? "all-reduce"
                           : kind == reduce_scatter ? "reduce-scatter"
                           : kind == all_gather     ? "all-gather"
                                                    : "broadcast");
    };
    const DType reduced = o.system.reduce_dtype, kept = o.system.dtype;
    std::string all = sent(false, sharded ? reduce_scatter : all_reduce, reduced, "gradients");
    if (matrices > 0) all += ", " + sent(true, all_reduce, reduced, "matrices' gradients");
    if (sharded) all += (matrices > 0 ? ", " : " and ") + sent(false, all_gather, kept, "parameters");
    if (matrices > 0) all += " and " + sent(true, broadcast, kept, "matrices' parameters");
    return fmt::format("each of {} processes sends and receives in a step, in {} buckets{}, {}", o.world_size,
                       table.buckets().size(),
                       matrices > 0 ? fmt::format(" ({} of them matrices)", matrices) : "", all);
}

// Says how evenly --zero 1 divides Muon's matrices among the processes.
std::string owners_plan(const TensorTable& table) {
    const std::vector<double>& loads = table.loads_of_owners();
    const double sum = std::accumulate(loads.begin(), loads.end(), 0.0),
                 most = *std::max_element(loads.begin(), loads.end());
    const auto idle = std::count(loads.begin(), loads.end(), 0.0);
    const std::string left_out =
        idle == 0 ? "" : fmt::format("; {} of them have none, since there are too few matrices", idle);
    return fmt::format(
        "muon: each matrix is updated by one of {} processes; the busiest has {:.2f} of the mean{}",
        loads.size(), most * static_cast<double>(loads.size()) / sum, left_out);
}

// --plan also serves machines that do not have the data.
std::string data_plan(const Options& o) {
    try {
        return fmt::format("data: {}", describe_data(o.data.train, o.data.val, {}));
    } catch (const Error& error) { return fmt::format("data: {}", error.what()); }
}

// Every process reads the data. Rank 0 tokenizes a text once, and the other ranks read its cache.
DataSplits open_data_together(const Options& o, Tokenizer& tokenizer, Communicator& communicator,
                              bool sorted_once, const Note& say) {
    const auto open = [&] {
        return open_data(train_data(o), o.data.val, tokenizer,
                         {.train_T = o.batch.seq_len,
                          .val_T = o.evaluation.val_every > 0 ? o.batch.seq_len : 0,
                          .sorted_once = sorted_once,
                          .note = say,
                          .stop = stop_requested});
    };
    std::optional<DataSplits> data;
    if (communicator.rank() == 0) data = open();
    gather_texts(communicator, "rank 0 is ready");
    return data ? std::move(*data) : open();
}

// --batch-size auto takes the checkpoint's micro-batch if it still divides the step, else the largest
// that fits.
template <class T>
void choose_batch_size(Options& o, const ResumePoint& from, size_t memory) {
    if (o.batch.size == 0) o.batch.size = from.batch_size(o);
    if (o.batch.size > 0) return;
    o.batch.size = largest_batch<T>(o, memory);
    CHECK(o.batch.size > 0,
          "not even one sequence of {} tokens fits into {}; expected a smaller model or --recompute block",
          o.batch.seq_len, readable(memory));
}

template <class T>
void print_model(const Options& o, const Model<T>& model, const Communicator& communicator, const Note& say) {
    say(fmt::format("{} on {}{}", to_string(o.system.dtype), simt::device_info().name,
                    communicator.size() == 1 ? ""
                                             : fmt::format(", {} processes over {}", communicator.size(),
                                                           communicator_library())));
    const ModelConfig& c = o.model.config;
    const std::string family = c.family == "gpt2" ? "" : fmt::format("{}, ", family_of(c).title),
                      kv_heads = c.NKV > 0 ? fmt::format(" over {}", c.NKV) : "",
                      hidden = c.H > 0 ? fmt::format(", MLP {}", c.H) : "";
    say(fmt::format(
        "model: {}{} layers, {} heads{}, {} channels{}, context {}, vocabulary {} (padded to {}): "
        "{} parameters",
        family, c.L, c.NH, kv_heads, c.C, hidden, c.context, c.V, c.Vp(), model.table().parameters()));
    say(fmt::format("step: {} tokens = {} x {}{} x {} micro-step{}", o.batch.total, o.batch.size,
                    o.batch.seq_len, o.world_size == 1 ? "" : fmt::format(" x {} processes", o.world_size),
                    o.accumulation(), o.accumulation() == 1 ? "" : "s"));
}

// Opens the data and identifies them. A run that versions up to November 2026 began, with other rules for
// the order of files, goes on with those rules.
template <class T>
void open_same_data(PreparedRun<T>& run, Communicator& communicator, const Note& say) {
    const Options& o = run.options;
    run.data = open_data_together(o, *run.tokenizer, communicator, false, say);
    run.state.identity = run_identity(o, *run.tokenizer, run.data.train);
    if (is_same_data(run.from, run.state.identity)) return;
    DataSplits before;
    try {
        before = open_data_together(o, *run.tokenizer, communicator, true, [](const std::string&) {});
    } catch (const UsageError&) {
        if (communicator.size() > 1) throw;  // the others wait for this rank
        return;                              // check_same_run() says what differs
    }
    const nlohmann::json identity = run_identity(o, *run.tokenizer, before.train);
    if (!is_same_data(run.from, identity)) return;
    say("the run began with its files sorted by name, each once, and goes on so");
    run.data = std::move(before);
    run.state.identity = identity;
}

template <class T>
void open_loaders(PreparedRun<T>& run, Communicator& communicator, const Note& say) {
    const Options& o = run.options;
    const HostAllocator pinned = simt::pinned_memory();
    const std::string model = o.model.initial ? o.model.initial->path() : run.from.checkpoint;
    run.tokenizer =
        make_tokenizer_for(model.empty() ? "the model" : model, o.model.config.V, o.data.tokenizer);
    run.state = {.batch_size = o.batch.size, .options = o.values};
    open_same_data(run, communicator, say);
    check_same_start(communicator, process_description(o, run.state.identity, run.data));
    check_same_run(run.from, run.state.identity, run.data.train_texts, o, say);
    const DataLoaderOptions loading{.B = o.batch.size,
                                    .T = o.batch.seq_len,
                                    .V = o.model.config.V,
                                    .total_batch = o.batch.total,
                                    .rank = communicator.rank(),
                                    .world_size = communicator.size(),
                                    .seed = o.system.seed,
                                    .shuffle = o.data.order == "shuffled"};
    run.loader = std::make_unique<DataLoader>(run.data.train, loading, pinned);
    if (!run.data.val.empty() && o.evaluation.val_every > 0) {
        run.val_loader =
            std::make_unique<ValidationLoader>(run.data.val, o.batch.size, o.batch.seq_len, o.model.config.V,
                                               static_cast<size_t>(o.evaluation.val_steps), pinned);
        run.text_bytes = text_bytes_of_tokens(*run.tokenizer, run.data.val, say);
    }
    if (!o.evaluation.hellaswag.empty() && o.evaluation.hellaswag_every > 0) {
        run.hellaswag =
            std::make_unique<HellaSwag>(read_hellaswag(o.evaluation.hellaswag, *run.tokenizer, say),
                                        o.batch.size, o.batch.seq_len, o.model.config.V, pinned);
        run.hellaswag->note_shortened(say);
    }
}

// --profile N needs N steps after its warm-up. In a resumed run with too few steps left, it is ignored
// with a note.
template <class T>
void check_profile(PreparedRun<T>& run, const Note& say) {
    Options& o = run.options;
    const int measurable = run.schedule.steps - run.from.step() - Profile::warm_up;
    CHECK(o.system.profile == 0 || o.system.profile <= measurable || run.from.step() > 0,
          "--profile {0} needs {0} steps after the first {1}, but this run has {2} steps; expected more "
          "--steps "
          "or a smaller --profile",
          o.system.profile, Profile::warm_up, run.schedule.steps);
    if (o.system.profile <= std::max(0, measurable)) return;
    say(fmt::format("--profile {} is ignored: too few steps are left to measure", o.system.profile));
    o.system.profile = 0;
}

// Reads the validation data and all masks through, and the first batch, so that unusable data ends the run
// before it has a folder. Training data may have many gigabytes; the rest of it is read as it is needed.
template <class T>
void read_through(PreparedRun<T>& run, const Communicator& communicator) {
    std::optional<StatusLine> line;
    if (communicator.rank() == 0) line.emplace(stdout);
    const auto check = [&](const char* what, const auto& reads) {
        std::optional<Progress> progress;
        if (line) progress.emplace(*line, what, "%", 100);
        reads([&](double done) {
            if (stop_requested()) throw Error("interrupted while the data was read; nothing was written");
            if (progress) progress->at(static_cast<size_t>(100 * done));
        });
    };
    run.loader->at(run.from.step() + 1, 0);
    check("reading the masks of the training data", [&](const auto& at) { run.loader->check_masks(at); });
    if (run.val_loader)
        check("reading the validation data", [&](const auto& at) { run.val_loader->check(at); });
}

template <class T>
void measure_peaks(PreparedRun<T>& run, const Note& say) {
    const Options& o = run.options;
    if (o.system.profile > 0) run.peaks = {measure_copy_bandwidth(), measure_matmul_rate(o.system.dtype)};
    run.peak = matmul_peak(simt::device_info().name, o.system.dtype, run.peaks.flops_per_second);
    say("peak for MFU: " + to_string(run.peak, o.world_size));
}

template <class T>
void load_start(PreparedRun<T>& run) {
    TrainingState& state = run.state;
    const ResumePoint& from = run.from;
    if (!from.checkpoint.empty()) load_checkpoint(*run.model, from.checkpoint, from.state);
    else if (run.options.model.initial) load_weights(*run.model, *run.options.model.initial);
    state.step = from.step();
    state.skipped = from.state.skipped;
    state.last_finite_step = from.state.last_finite_step;
}

}  // namespace

Note note_on_stdout(const Communicator& communicator) {
    if (communicator.rank() > 0) return [](const std::string&) {};
    return [](const std::string& line) {
        print_line(stdout, printable(line, "\n"));
        std::fflush(stdout);
    };
}

template <class T>
std::optional<PreparedRun<T>> prepare(const Options& options, Communicator& communicator) {
    const Note say = note_on_stdout(communicator);
    PreparedRun<T> run{.options = options, .from = find_resume_point(options, communicator, say)};
    Options& o = run.options;
    const size_t memory = memory_of_a_process(o, communicator);
    choose_batch_size<T>(o, run.from, memory);
    run.model = std::make_unique<Model<T>>(make_family<T>(o.model.config), model_options(o));
    print_model(o, *run.model, communicator, say);
    check_memory(o, *run.model, memory, say);
    if (o.optimizer.kind == Optimizer::muon && run.model->options().sharded())
        say(owners_plan(run.model->table()));
    if (o.plan.only) {
        say(length_plan(o));
        if (o.world_size > 1) say(communication_plan(o, run.model->table()));
        if (!o.data.train.empty()) say(data_plan(o));
        // a failed write is an error here, because the plan is the program's only output
        if (communicator.rank() == 0) write_output("", "the plan");
        return std::nullopt;
    }

    open_loaders(run, communicator, say);
    run.schedule = {o.optimizer.schedule,        o.step_count(run.loader->windows()),
                    o.optimizer.warmup,          o.optimizer.lr,
                    o.optimizer.min_lr_fraction, o.optimizer.cooldown,
                    o.optimizer.cooldown_shape};
    say(training_plan(o, run.schedule, run.data, run.loader->windows()));
    if (run.schedule.warmup > run.schedule.steps) say(note_of_warmup(run.schedule));
    if (run.from.is_complete(run.schedule.steps)) {
        CHECK(!run.from.found.empty(),
              "{} is the end of a run of {} steps, which leaves none for {}; expected more --steps",
              run.from.checkpoint, run.schedule.steps, run.from.run_folder);
        say(fmt::format("{} holds the whole run of {} steps; nothing is left to do", run.from.run_folder,
                        run.schedule.steps));
        return std::nullopt;
    }
    if (run.schedule.warmup < run.schedule.steps &&
        run.schedule.at(run.schedule.warmup + 1) < 0.999 * run.schedule.lr)
        say(note_of_drop(run.schedule));
    check_profile(run, say);
    if (communicator.rank() == 0 && o.output.checkpoint_every > 0)
        check_disk_space(o, *run.model, run.from, run.schedule.steps, say);
    read_through(run, communicator);

    if (communicator.rank() == 0) measure_peaks(run, say);  // before the model takes the memory
    run.model->allocate(&communicator);
    load_start(run);
    check_replicas(communicator, run.model->checksum(), run.from.step());
    return run;
}

template std::optional<PreparedRun<float>> prepare(const Options&, Communicator&);
template std::optional<PreparedRun<bfloat16>> prepare(const Options&, Communicator&);
