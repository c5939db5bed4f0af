// train_gpt2.cu: the training loop. Text -> tokens -> DataLoader -> GPT2::forward -> loss -> GPT2::backward -> GPT2::update.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "checkpoint_writer.h"
#include "data_directory.h"
#include "data_files.h"
#include "data_loader.h"
#include "error.h"
#include "evaluate.h"
#include "generate.h"
#include "gpt2.h"
#include "logger.h"
#include "memory_fit.h"
#include "options.h"
#include "outlier_detector.h"
#include "printable.h"
#include "resume.h"
#include "run_main.h"
#include "schedule.h"
#include "stop_signal.h"
#include "tokenizer.h"
#include "version.h"
#include "window_decoder.h"

namespace {

bool due(int every, int step) { return every > 0 && step % every == 0; }

HostAllocator pinned_memory() { return {simt::pinned_malloc, simt::pinned_free}; }

void say(const std::string& line) {
    fmt::print("{}\n", printable(line));
    std::fflush(stdout);
}

std::string where_to_go_on(const std::string& checkpoint) {
    return checkpoint.empty() ? "there is no checkpoint to go on from" : "the last good checkpoint is " + checkpoint;
}

// Text from the model as it is: neither sharpened nor blurred. It may be longer than the context.
template <class T>
std::string sample_text(GPT2<T>& model, const Tokenizer& tokenizer, const Options& o, int step) {
    const int start = tokenizer.end_of_text().value_or('\n');
    WindowDecoder<T> decoder(model, o.seq_len);
    std::string text;
    const auto append = [&](int, int token) {
        if (token != tokenizer.end_of_text()) text += tokenizer.token_bytes(token);
    };
    generate(decoder, {start < o.config.V ? start : 0},
             {.max_tokens = o.sample_tokens,
              .vocabulary = std::min(tokenizer.vocab_size(), o.config.V),  // a model may have more tokens than its tokenizer
              .end_of_text = tokenizer.end_of_text(),
              .seed = o.seed,
              .step = static_cast<uint64_t>(step)},
             append, stop_requested);
    return text;
}

int steps_of(const Options& o, uint64_t windows) {
    const double samples_per_step = static_cast<double>(o.total_batch) / o.seq_len;
    double steps = o.steps;
    if (o.epochs > 0) steps = std::ceil(o.epochs * static_cast<double>(windows) / samples_per_step);
    if (o.tokens > 0) steps = std::ceil(static_cast<double>(o.tokens) / static_cast<double>(o.total_batch));
    CHECK(steps <= 1 << 30, "a run of {:.3g} steps; expected at most {}", steps, 1 << 30);
    return static_cast<int>(steps);
}

template <class T>
nlohmann::json run_description(const Options& o, const GPT2<T>& model, const std::string& device, int steps, const ResumePoint& from) {
    nlohmann::json description = {
        {"options", o.values},
        {"model",
         {{"layers", o.config.L},
          {"heads", o.config.NH},
          {"channels", o.config.C},
          {"context", o.config.context},
          {"vocab", o.config.V},
          {"parameters", model.table().parameters()}}},
        {"batch", {{"batch_size", o.batch_size}, {"seq_len", o.seq_len}, {"micro_steps", o.accumulation()}, {"total_batch", o.total_batch}}},
        {"steps", steps},
        {"machine", device},
        {"versions", {{"flatgpt", version}, {"compiler", __VERSION__}}}};
    if (!from.checkpoint.empty()) description["resumed_from"] = from.step();
    return description;
}

template <class T>
void train(Options o) {
    const ResumePoint from = find_resume_point(o, say);
    const simt::DeviceInfo device = simt::device_info();
    // On a GPU, kernels' code and libraries take some of what is free now.
    const size_t libraries = simt::is_gpu() ? std::min(device.free_memory, size_t{300} << 20) : 0;
    const size_t memory = o.device_memory.value_or(device.free_memory - libraries);
    if (o.batch_size == 0) o.batch_size = from.batch_size(o.total_batch, o.seq_len);
    if (o.batch_size == 0) {
        o.batch_size = largest_batch<T>(o, memory);
        CHECK(o.batch_size > 0, "not even one sequence of {} tokens fits into {}; expected a smaller model or --recompute block", o.seq_len,
              readable(memory));
    }
    GPT2<T> model(o.config, model_options(o));
    fmt::print("{} on {}\n", to_string(o.dtype), device.name);
    fmt::print("model: {} layers, {} heads, {} channels, context {}, vocabulary {} (padded to {}): {} parameters\n", o.config.L, o.config.NH,
               o.config.C, o.config.context, o.config.V, o.config.Vp(), model.table().parameters());
    fmt::print("step: {} tokens = {} x {}{} x {} micro-step{}\n", o.total_batch, o.batch_size, o.seq_len,
               o.world_size == 1 ? "" : fmt::format(" x {} processes", o.world_size), o.accumulation(), o.accumulation() == 1 ? "" : "s");
    check_memory(o, model, memory);
    if (o.plan) {
        if (o.world_size > 1) print_scaling<T>(o, memory);
        return;
    }

    const auto tokenizer = make_tokenizer(o.tokenizer);
    const DataSplits data = open_data(o.train_data.empty() ? data_directory() + "/tinyshakespeare.txt" : o.train_data, o.val_data, *tokenizer,
                                      {.train_T = o.seq_len, .val_T = o.val_every > 0 ? o.seq_len : 0, .note = say});
    TrainingState state{.batch_size = o.batch_size, .options = o.values, .identity = run_identity(o, data.train)};
    check_same_run(from, state.identity, o, say);
    DataLoader loader(
        data.train,
        {.B = o.batch_size, .T = o.seq_len, .V = o.config.V, .total_batch = o.total_batch, .seed = o.seed, .shuffle = o.data_order == "shuffled"},
        pinned_memory());
    std::optional<ValidationLoader> val_loader;
    if (!data.val.empty() && o.val_every > 0) {
        val_loader.emplace(data.val, o.batch_size, o.seq_len, o.config.V, static_cast<size_t>(o.val_steps), pinned_memory());
    }
    std::optional<HellaSwag> hellaswag;
    if (!o.hellaswag.empty() && o.hellaswag_every > 0) {
        hellaswag.emplace(read_hellaswag(o.hellaswag, *tokenizer), o.batch_size, o.seq_len, o.config.V, pinned_memory());
    }
    const Schedule schedule{o.schedule, steps_of(o, loader.windows()), o.warmup, o.lr, o.min_lr_fraction};
    schedule.check();
    if (from.is_complete(schedule.steps))
        return say(fmt::format("{} holds the whole run of {} steps; nothing is left to do", from.run_folder, schedule.steps));
    // Data that cannot be trained on ends the run before it has a folder.
    loader.at(from.step() + 1, 0);
    if (val_loader) val_loader->at(0);
    model.allocate();
    if (!from.checkpoint.empty()) load_checkpoint(model, from.checkpoint, from.state);
    else if (o.initial) load_weights(model, *o.initial);

    const FolderLock lock = prepare_run_folder(from, say);
    Logger log(from.run_folder, schedule.steps, o.total_batch, o.log_every);
    log.run(run_description(o, model, device.name, schedule.steps, from));
    log.note(fmt::format("writing to {}", log.folder()));
    std::optional<CheckpointWriter> checkpoints;
    if (o.checkpoint_every > 0) {
        checkpoints.emplace(model, CheckpointWriter::Options{from.run_folder, o.tokenizer, {.newest = o.keep, .every = o.keep_every}},
                            pinned_memory(), [&](const std::string& line) { log.note(line); });
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
            if (const auto result = evaluate(model, *val_loader, stop_requested)) log.validation(step, state.val_loss.emplace(result->loss));
        }
        if (hellaswag && (due(o.hellaswag_every, step) || last)) {
            if (const auto result = evaluate(model, *hellaswag, stop_requested)) log.hellaswag(step, *result);
        }
        if (o.sample_every > 0 && (due(o.sample_every, step) || last)) {
            const std::string text = sample_text(model, *tokenizer, o, step);
            if (!stop_requested()) log.sample(step, text);
        }
        state.evaluated = !stop_requested();
    };
    const auto save = [&] {
        state.outlier_detector = outliers.state();
        checkpoints->save(model, state);
    };
    state.step = from.step();
    state.skipped = from.state.skipped;
    bool stopped = false;
    try {
        if (!from.state.evaluated) {
            evaluate_step(state.step);
            // No later checkpoint will say that the run is complete.
            if (checkpoints && state.evaluated && state.step == schedule.steps) save();
        }
        stopped = stop_requested();
        for (int step = from.step() + 1; step <= schedule.steps && !stopped; step++) {
            const auto start = std::chrono::steady_clock::now();
            for (int micro = 0; micro < loader.micro_steps(); micro++) {
                model.forward(loader.at(step, micro));
                model.backward();
            }
            const StepResult result = model.update(o.optimizer_at(schedule.at(step)), veto);
            const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
            log.train(step, result, schedule.at(step), elapsed.count());
            if (due(o.log_layer_norms, step)) log.layer_norms(step, layer_norms(model.table(), model.squared_norms()));
            state.step = step;
            state.skipped = std::isfinite(result.grad_norm) ? 0 : state.skipped + 1;
            if (state.skipped == o.max_skipped)
                throw Error(fmt::format("{} steps in a row had a gradient norm that is not finite; the run ends at step {}", state.skipped, step));
            evaluate_step(step);
            stopped = stop_requested();
            if (checkpoints && (due(o.checkpoint_every, step) || step == schedule.steps || stopped)) save();
        }
        if (checkpoints && !checkpoints->finish()) throw Error("the last checkpoint could not be written");
    } catch (const Error& error) {
        // Whatever ends a run before its time, the last line says from where it can go on.
        if (checkpoints) checkpoints->finish();
        const std::string good = checkpoints ? checkpoints->newest_good() : "";
        throw Error(fmt::format("{}; {}", error.what(), where_to_go_on(good.empty() ? from.checkpoint : good)), error.exit_code);
    }
    log.note(!stopped ? fmt::format("done; the run is in {}", log.folder())
                      : fmt::format("stopped by a signal; everything is written to {}{}", log.folder(),
                                    checkpoints ? fmt::format("; the same options with --out {} --resume auto go on", log.folder()) : ""));
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("train_gpt2", [&] {
        const std::optional<Options> options = parse_options(argc, argv);
        if (!options) return;
        stop_on({SIGINT, SIGTERM, SIGUSR1});  // USR1: what SLURM sends before a job's time is over, if it is asked to
        std::signal(SIGXFSZ, SIG_IGN);        // a file that may not grow is a failed write, which says so
        simt::select_device();
        if (options->dtype == DType::bf16) train<bfloat16>(*options);
        else train<float>(*options);
    });
}
