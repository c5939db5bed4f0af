// train_gpt2.cu: the training loop. Text -> tokens -> DataLoader -> GPT2::forward -> loss -> GPT2::backward -> Communicator -> GPT2::update.
//   Every process runs it; rank 0 speaks, writes the metrics and samples.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <numeric>
#include <utility>

#include "system/data_directory.h"
#include "system/error.h"
#include "system/host_allocator.h"
#include "system/note.h"
#include "system/print_line.h"
#include "system/printable.h"
#include "system/status_line.h"
#include "system/stop_signal.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/data/data_files.h"
#include "trainer/data/data_loader.h"
#include "trainer/distributed/run_together.h"
#include "trainer/inference/evaluate.h"
#include "trainer/model/gpt2.h"
#include "trainer/model/schedule.h"
#include "trainer/run/disk_fit.h"
#include "trainer/run/gpu_monitor.h"
#include "trainer/run/logger.h"
#include "trainer/run/matmul_tuning.h"
#include "trainer/run/memory_fit.h"
#include "trainer/run/options.h"
#include "trainer/run/outlier_detector.h"
#include "trainer/run/peaks.h"
#include "trainer/run/replicas.h"
#include "trainer/run/run_description.h"
#include "trainer/run/sample_text.h"
#include "trainer/tokenizer/tokenizer.h"

namespace {

bool due(int every, int step) { return every > 0 && step % every == 0; }

// Whether something looks at the model, or saves it, as this step leaves it: the next one must not have begun.
bool pauses_after(int step, const Options& o) {
    const int intervals[] = {o.val_every, o.hellaswag_every, o.sample_every, o.checkpoint_every, o.log_layer_norms, o.check_replicas};
    return std::any_of(std::begin(intervals), std::end(intervals), [&](int every) { return due(every, step); });
}

HostAllocator pinned_memory() { return {simt::pinned_malloc, simt::pinned_free}; }

// For the last line of a run that ends before its time. state: of the last step that was written down.
std::string where_to_go_on(const CheckpointWriter* checkpoints, const ResumePoint& from, const TrainingState& state) {
    const bool good_begin = !from.checkpoint.empty() && is_good({from.step(), from.state.val_loss}, state.sound_step);
    std::string good = good_begin ? from.checkpoint : "", newest = from.checkpoint;
    try {
        if (const std::string own = checkpoints ? checkpoints->newest_good(state.sound_step) : ""; !own.empty()) good = own;
        if (const std::string own = checkpoints ? checkpoints->newest() : ""; !own.empty()) newest = own;
    } catch (const std::exception&) {}  // a folder that cannot be read; what ended the run is said
    if (!good.empty()) return "the last good checkpoint is " + good;
    return newest.empty() ? "there is no checkpoint to go on from" : fmt::format("no checkpoint is known to be good; the newest is {}", newest);
}

// Short trials of a long run's options are common, so they are trained; but the rate is then not the one that was asked for.
std::string note_of_warmup(const Schedule& schedule) {
    return fmt::format("note: the warmup of {} steps is longer than the run of {}; the learning rate rises to {:.3g} instead of {:.3g}",
                       schedule.warmup, schedule.steps, schedule.at(schedule.steps), schedule.lr);
}

size_t tokens_of(const std::vector<TokenShard>& shards) {
    return std::accumulate(shards.begin(), shards.end(), size_t{0}, [](size_t sum, const TokenShard& shard) { return sum + shard.size(); });
}

// What the run will do, for a person who may have meant something else.
std::string training_plan(const Options& o, const Schedule& schedule, const DataSplits& data) {
    const size_t tokens = tokens_of(data.train);
    const double epochs = static_cast<double>(schedule.steps) * static_cast<double>(o.total_batch) / static_cast<double>(tokens);
    const std::string end =
        schedule.shape == "constant" ? "constant" : fmt::format("{} to {:.3g}", schedule.shape, schedule.lr * schedule.min_fraction);
    const bool masked = std::any_of(data.train.begin(), data.train.end(), [](const TokenShard& shard) { return shard.has_mask(); });
    return fmt::format("data: {} tokens to train on{}, {} to validate\nschedule: {} steps ({:.3g} epochs), lr {:.3g}, warmup {}, {}", tokens,
                       masked ? " (masks say which count as targets)" : "", data.val.empty() ? "none" : std::to_string(tokens_of(data.val)),
                       schedule.steps, epochs, schedule.lr, schedule.warmup, end);
}

// Runs evaluation(stop) on `batches` batches of all processes, with a line that shows how far it is.
template <class Evaluation>
auto show_progress(Logger& log, const Communicator& all, const char* what, size_t batches, const Evaluation& evaluation) {
    std::optional<Progress> progress;
    if (all.rank() == 0) progress.emplace(log.status(), what, "batches", batches);
    size_t done = 0;
    return evaluation([&] {
        if (progress) progress->at(done);
        done = std::min(batches, done + static_cast<size_t>(all.size()));
        return stop_requested();
    });
}

// Those that the run's folder holds already are on the disk, and make room for newer ones.
template <class T>
void say_of_disk(const Options& o, const GPT2<T>& model, const ResumePoint& from, int steps, const Note& say) {
    const std::optional<size_t> free = free_bytes(from.run_folder);
    if (!free) return;
    const size_t bytes = (1 + model.optimizer_buffers().size()) * model.table().elements() * sizeof(float);
    const size_t count = most_checkpoints(o, from.step(), steps), there = checkpoint_folders(from.run_folder).size();
    const std::string note = check_disk(from.run_folder, bytes, count - std::min(count, there), *free);
    if (!note.empty()) say(note);
}

// Every process reads the data; a text is tokenized once, by rank 0, and the others find it cached.
DataSplits open_data_together(const Options& o, Tokenizer& tokenizer, Communicator& all, const Note& say) {
    const auto open = [&] {
        return open_data(o.train_data.empty() ? data_directory() + "/tinyshakespeare.txt" : o.train_data, o.val_data, tokenizer,
                         {.train_T = o.seq_len, .val_T = o.val_every > 0 ? o.seq_len : 0, .note = say, .stop = stop_requested});
    };
    std::optional<DataSplits> data;
    if (all.rank() == 0) data = open();
    gather_texts(all, "rank 0 is ready");
    return data ? std::move(*data) : open();
}

template <class T>
void train(Options o, Communicator& all) {
    const bool first = all.rank() == 0;
    const Note say = [&](const std::string& line) {
        if (!first) return;
        print_line(stdout, printable(line, "\n"));
        std::fflush(stdout);
    };
    ResumePoint from = find_resume_point(o, all, say);
    const std::string device = simt::device_info().name;
    const size_t memory = memory_of_a_process(o, all);
    if (o.batch_size == 0) o.batch_size = from.batch_size(o);
    if (o.batch_size == 0) {
        o.batch_size = largest_batch<T>(o, memory);
        CHECK(o.batch_size > 0, "not even one sequence of {} tokens fits into {}; expected a smaller model or --recompute block", o.seq_len,
              readable(memory));
    }
    GPT2<T> model(o.config, model_options(o));
    say(fmt::format("{} on {}{}", to_string(o.dtype), device,
                    all.size() == 1 ? "" : fmt::format(", {} processes over {}", all.size(), communicator_library())));
    say(fmt::format("model: {} layers, {} heads, {} channels, context {}, vocabulary {} (padded to {}): {} parameters", o.config.L, o.config.NH,
                    o.config.C, o.config.context, o.config.V, o.config.Vp(), model.table().parameters()));
    say(fmt::format("step: {} tokens = {} x {}{} x {} micro-step{}", o.total_batch, o.batch_size, o.seq_len,
                    o.world_size == 1 ? "" : fmt::format(" x {} processes", o.world_size), o.accumulation(), o.accumulation() == 1 ? "" : "s"));
    check_memory(o, model, memory, say);
    if (o.plan) {
        if (o.world_size > 1) say(scaling_plan<T>(o, memory));
        if (first) write_output("", "the plan");  // nobody would miss it on a full disk
        return;
    }

    const auto tokenizer = make_tokenizer_for(o.initial ? o.initial->path() : "the model", o.config.V, o.tokenizer);
    const DataSplits data = open_data_together(o, *tokenizer, all, say);
    TrainingState state{.batch_size = o.batch_size, .options = o.values, .identity = run_identity(o, *tokenizer, data.train)};
    check_same_start(all, process_description(o, state.identity, data));
    check_same_run(from, state.identity, o, say);
    DataLoader loader(data.train,
                      {.B = o.batch_size,
                       .T = o.seq_len,
                       .V = o.config.V,
                       .total_batch = o.total_batch,
                       .rank = all.rank(),
                       .world_size = all.size(),
                       .seed = o.seed,
                       .shuffle = o.data_order == "shuffled"},
                      pinned_memory());
    std::optional<ValidationLoader> val_loader;
    if (!data.val.empty() && o.val_every > 0) {
        val_loader.emplace(data.val, o.batch_size, o.seq_len, o.config.V, static_cast<size_t>(o.val_steps), pinned_memory());
    }
    std::optional<HellaSwag> hellaswag;
    if (!o.hellaswag.empty() && o.hellaswag_every > 0) {
        hellaswag.emplace(read_hellaswag(o.hellaswag, *tokenizer), o.batch_size, o.seq_len, o.config.V, pinned_memory());
    }
    const Schedule schedule{o.schedule, o.step_count(loader.windows()), o.warmup, o.lr, o.min_lr_fraction};
    schedule.check();
    say(training_plan(o, schedule, data));
    if (schedule.warmup > schedule.steps) say(note_of_warmup(schedule));
    if (from.is_complete(schedule.steps))
        return say(fmt::format("{} holds the whole run of {} steps; nothing is left to do", from.run_folder, schedule.steps));
    // A run that goes on for its last few steps is not refused.
    const int measurable = schedule.steps - from.step() - Profile::warm_up;
    CHECK(o.profile == 0 || o.profile <= measurable || from.step() > 0,
          "--profile {} measures as many steps after the first {}, but this run has {}; expected more --steps, or fewer to measure", o.profile,
          Profile::warm_up, schedule.steps);
    if (o.profile > std::max(0, measurable)) {
        say(fmt::format("--profile {}: too few steps are left for a table", o.profile));
        o.profile = 0;
    }
    if (first && o.checkpoint_every > 0) say_of_disk(o, model, from, schedule.steps, say);
    // Data that cannot be trained on ends the run before it has a folder.
    loader.at(from.step() + 1, 0);
    if (val_loader) val_loader->at(0);
    // While the memory is still free.
    Peaks peaks;
    MatmulPeak peak;
    if (first) {
        if (o.profile > 0) peaks = {measure_copy_bandwidth(), measure_matmul_rate(o.dtype)};
        peak = matmul_peak(device, o.dtype, peaks.flops_per_second);
        say(fmt::format("peak for MFU: {}{}", o.world_size == 1 ? "" : fmt::format("{} x ", o.world_size), to_string(peak)));
    }
    const double step_flops = flops_per_token(o.config, o.seq_len) * static_cast<double>(o.total_batch);
    model.allocate(&all);
    if (!from.checkpoint.empty()) load_checkpoint(model, from.checkpoint, from.state);
    else if (o.initial) load_weights(model, *o.initial);
    check_replicas(all, model.checksum(), from.step());

    std::optional<FolderLock> lock;
    if (first) {
        if (from.is_proposed) from.run_folder = make_new_folder(from.run_folder);
        lock.emplace(prepare_run_folder(from, say));
    }
    from.run_folder = gather_texts(all, from.run_folder).front();
    Logger log(from.run_folder, schedule.steps, o.total_batch, o.log_every, first,
               first ? step_flops / (peak.flops_per_second * o.world_size) * 1e3 : 0);
    log.run(run_description(o, model, device, peak, schedule.steps, from));
    log.note(fmt::format("writing to {}", log.folder()));
    const auto rehearse = [&] { model.rehearse(loader.at(from.step() + 1, 0)); };
    // Two runs may time differently, and algorithms differ in the order of their additions.
    const double most_seconds = o.deterministic ? 0 : o.comm_timeout / 2;
    tune_matmuls(model.gemm(), rehearse, from, most_seconds, all, [&](const std::string& line) { log.note(line); });
    std::optional<CheckpointWriter> checkpoints;
    if (o.checkpoint_every > 0) {
        const Note note = [&](const std::string& line) {
            if (first) log.note(line);
            else print_line(stderr, fmt::format("train_gpt2: rank {}: {}", all.rank(), printable(line)));
        };
        checkpoints.emplace(model, all, CheckpointWriter::Options{from.run_folder, *tokenizer, {.newest = o.keep, .every = o.keep_every}},
                            pinned_memory(), note);
    }

    OutlierDetector outliers(o.skip_loss_z, o.skip_norm_z);
    outliers.restore(from.state.outlier_detector);
    Veto veto;
    if (outliers.active()) veto = [&](const StepResult& step) { return outliers.judge(step.loss, step.grad_norm); };
    // A signal breaks off a validation or a sample; what is not whole is not written, and the run that goes on from here does it again.
    const auto evaluate_step = [&](int step) {
        const bool last = step == schedule.steps;
        state.val_loss.reset();
        if (val_loader && (due(o.val_every, step) || last)) {
            const auto result = show_progress(log, all, "validating", val_loader->batches(),
                                              [&](const StopRequested& stop) { return evaluate(model, *val_loader, all, stop); });
            if (result) log.validation(step, state.val_loss.emplace(result->loss));
        }
        if (hellaswag && (due(o.hellaswag_every, step) || last)) {
            const auto result = show_progress(log, all, "HellaSwag", hellaswag->batches(),
                                              [&](const StopRequested& stop) { return evaluate(model, *hellaswag, all, stop); });
            if (result) log.hellaswag(step, *result);
        }
        if (first && o.sample_every > 0 && (due(o.sample_every, step) || last)) {
            const std::string text = sample_text(model, *tokenizer, o, step);
            if (!stop_requested()) log.sample(step, text);
        }
        const bool stopped = in_any_process(all, stop_requested());
        state.evaluated = !stopped;
        return stopped;
    };
    StepFlags told;  // what processes told each other with the last step that was written down
    const auto save = [&] {
        state.outlier_detector = outliers.state();
        checkpoints->save(model, state);
        told.writing = true;
    };
    GpuMonitor gpu(first ? simt::device_info().pci_bus_id : "");
    if (first) model.profile().measure(o.profile);
    const int last_profiled = o.profile > 0 ? from.step() + Profile::warm_up + o.profile : 0;  // until then each step is over before the next
    state.step = from.step();
    state.skipped = from.state.skipped;
    state.sound_step = from.state.sound_step;
    // Up to this step. Usually the next one has begun meanwhile, so that the device does not wait for the host.
    const auto write_down = [&](int last) {
        while (state.step < last) {
            const StepResult result = model.finish_update();
            const int step = ++state.step;
            log.train(step, result, schedule.at(step), result.ms, gpu.take());
            if (model.profile().end_step(result.ms)) {
                log.profile(step, model.profile().report(peaks));
                for (const std::string& line : model.gemm().chosen_algorithms()) log.note(line);
            }
            if (due(o.log_layer_norms, step)) log.layer_norms(step, layer_norms(model.table(), model.squared_norms()));
            if (due(o.check_replicas, step)) check_replicas(all, model.checksum(), step);
            told = result.any;
            state.skipped = std::isfinite(result.grad_norm) ? 0 : state.skipped + 1;
            if (state.skipped == 0 && is_sound(result.loss)) state.sound_step = step;
            if (state.skipped < o.max_skipped) continue;
            if (checkpoints) checkpoints->finish();
            throw Error(fmt::format("{} steps in a row had a gradient norm that is not finite; the run ends at step {}", state.skipped, step));
        }
    };
    int begun = from.step();
    bool stopped = false;
    try {
        if (!from.state.evaluated) {
            stopped = evaluate_step(state.step);
            // No later checkpoint will say that the run is complete.
            if (checkpoints && state.evaluated && state.step == schedule.steps) save();
        } else {
            stopped = in_any_process(all, stop_requested());
        }
        for (int step = from.step() + 1; step <= schedule.steps && !stopped; step++) {
            model.profile().begin_step();
            model.begin_step();
            for (int micro = 0; micro < loader.micro_steps(); micro++) {
                model.forward(loader.at(step, micro));
                model.backward(micro + 1 == loader.micro_steps());  // the last micro-step's gradients are added up over the processes
            }
            model.begin_update(o.optimizer_at(schedule.at(step)), {stop_requested(), checkpoints && checkpoints->is_writing()}, veto);
            begun = step;
            write_down(step - 1);
            if (checkpoints) checkpoints->poll(told.writing);
            const bool stop = all.size() == 1 ? stop_requested() : told.stop;  // what all processes know
            if (!stop && !pauses_after(step, o) && step > last_profiled && step < schedule.steps) continue;
            write_down(step);
            stopped = evaluate_step(step);
            if (checkpoints && (due(o.checkpoint_every, step) || step == schedule.steps || stopped)) save();
        }
        if (checkpoints && !checkpoints->finish()) throw Error("the last checkpoint could not be written");
        log.sync();
    } catch (const Error& error) {
        try {
            if (state.skipped < o.max_skipped) write_down(begun);
        } catch (const std::exception&) {}  // this error came first
        // Whatever ends a run before its time, the last line says from where it can go on.
        if (checkpoints) checkpoints->wait();
        throw Error(fmt::format("{}; {}", error.what(), where_to_go_on(checkpoints ? &*checkpoints : nullptr, from, state)), error.exit_code);
    }
    log.note(!stopped ? fmt::format("done; the run is in {}", log.folder())
                      : fmt::format("stopped by a signal; everything is written to {}{}", log.folder(),
                                    checkpoints ? fmt::format("; --resume {} goes on", log.folder()) : ""));
}

}  // namespace

int main(int argc, char** argv) {
    return run_together("train_gpt2", [&](const Process& process, std::unique_ptr<Communicator>& communicator) {
        const std::optional<Options> options = parse_options(argc, argv, process);
        if (!options) return;
        stop_on({SIGINT, SIGTERM, SIGUSR1});  // USR1: what SLURM sends before a job's time is over, if it is asked to
        if (hangup_was_ignored()) std::signal(SIGHUP, SIG_IGN);
        else stop_on({SIGHUP});  // the terminal is gone
        if (process.rank == 0) answer_stop("\ntrain_gpt2: stopping after this step, with a checkpoint; once more to end at once\n");
        std::signal(SIGPIPE, SIG_IGN);  // nobody reads the terminal's lines any more; the metrics are in their file
        simt::select_device(process.local_rank, process.local_size);
        if (!options->plan) check_dtype(options->dtype, simt::device_info());
        communicator = make_communicator(process, options->comm_timeout);
        if (options->dtype == DType::bf16) train<bfloat16>(*options, *communicator);
        else train<float>(*options, *communicator);
    });
}
