#include "trainer/run/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "kernels/simt/device.h"
#include "kernels/simt/pinned_memory.h"
#include "system/print_line.h"
#include "system/printable.h"
#include "system/stop_signal.h"
#include "system/version.h"
#include "trainer/engine/norms_by_layer.h"
#include "trainer/inference/evaluate.h"
#include "trainer/inference/generate.h"
#include "trainer/models/families.h"
#include "trainer/run/matmul_tuning.h"
#include "trainer/run/replicas.h"

namespace {

bool due(int every, int step) { return every > 0 && step % every == 0; }

// The first line of metrics.jsonl.
template <class T>
nlohmann::json run_description(const Options& o, const Model<T>& model, const std::string& device,
                               const MatmulPeak& peak, int steps, const ResumePoint& from) {
    nlohmann::json description = {
        {"options", o.values},
        {"model", {{"parameters", model.table().parameters()}}},
        {"batch",
         {{"batch_size", o.batch.size},
          {"seq_len", o.batch.seq_len},
          {"micro_steps", o.accumulation()},
          {"total_batch", o.batch.total},
          {"processes", o.world_size}}},
        {"steps", steps},
        {"machine", device},
        {"mfu_peak", {{"flops_per_second", peak.flops_per_second}, {"measured", peak.measured}}},
        {"versions", {{"flatgpt", version}, {"compiler", __VERSION__}}}};
    const nlohmann::json sizes = sizes_of(o.model.config);
    for (const auto& [name, value] : sizes.items()) {
        std::string key = name;
        std::ranges::replace(key, '-', '_');
        description["model"][key] = value;
    }
    if (o.model.config.family != families().front().name)
        description["model"]["family"] = o.model.config.family;
    if (!from.checkpoint.empty()) description["resumed_from"] = from.step();
    return description;
}

// Text drawn from the model's distribution at temperature 1. It may be longer than the context.
template <class T>
std::string sample_text(Model<T>& model, const Tokenizer& tokenizer, const Options& o, int step) {
    std::string text;
    const auto append = [&](int, int token) {
        if (!tokenizer.ends_text(token)) text += tokenizer.token_bytes(token);
    };
    generate(model.decoder(), {tokenizer.first_token()},
             {.max_tokens = o.evaluation.sample_tokens,
              // the model's vocabulary may be larger than the tokenizer's
              .vocabulary = std::min(tokenizer.vocab_size(), o.model.config.V),
              .ends = tokenizer.ends(),
              .seed = o.system.seed,
              .step = static_cast<uint64_t>(step)},
             append, stop_requested);
    return text;
}

}  // namespace

template <class T>
Session<T>::Session(PreparedRun<T>& run, Communicator& communicator)
    : run_(run),
      communicator_(communicator),
      options_(run.options),
      model_(*run.model),
      outliers_(options_.optimizer.skip_loss_z, options_.optimizer.skip_norm_z),
      state_(run.state),
      step_(run.from.step()),
      last_profiled_(options_.system.profile > 0 ? step_ + Profile::warm_up + options_.system.profile : 0) {
    open_folder();
    const auto rehearse = [&] { model_.rehearse(run_.loader->at(step_ + 1, 0)); };
    // Timings differ between runs, and algorithms add in different orders, so deterministic runs time
    // nothing.
    const double most_seconds = options_.system.deterministic ? 0 : options_.system.comm_timeout / 2;
    tune_matmuls(model_.gemm(), rehearse, run_.from, most_seconds, communicator_,
                 [&](const std::string& line) { log_->note(line); });
    if (options_.output.checkpoint_every > 0) open_checkpoints();
    outliers_.restore(run_.from.state.outlier_detector);
    if (outliers_.active())
        veto_ = [&](const StepResult& step) { return outliers_.judge(step.loss, step.grad_norm); };
    if (is_first()) {
        model_.profile().measure(options_.system.profile);
        const double flops =
            family_of(options_.model.config).flops_per_token(options_.model.config, options_.batch.seq_len) *
            static_cast<double>(options_.batch.total) / options_.world_size;
        // A GPU is at work on the next step, and its memory may be full.
        mfu_.emplace(run_.peak.flops_per_second, flops,
                     [&] { return simt::is_gpu() ? 0 : measure_matmul_rate(options_.system.dtype, true); });
    }
    gpu_.emplace(is_first() ? simt::device_info().pci_bus_id : "");
}

template <class T>
void Session<T>::open_folder() {
    ResumePoint& from = run_.from;
    if (is_first()) lock_.emplace(prepare_run_folder(from, note_on_stdout(communicator_)));
    from.run_folder = gather_texts(communicator_, from.run_folder).front();
    from.checkpoint = gather_texts(communicator_, from.checkpoint).front();
    if (from.is_in_run_folder()) saved_step_ = from.step();
    log_.emplace(from.run_folder, run_.schedule.steps, options_.batch.total, options_.output.log_every,
                 is_first());
    log_->run(
        run_description(options_, model_, simt::device_info().name, run_.peak, run_.schedule.steps, from));
    log_->note(fmt::format("writing to {}", log_->folder()));
}

template <class T>
void Session<T>::open_checkpoints() {
    const Note note = [&](const std::string& line) {
        if (is_first()) log_->note(line);
        else
            print_line(stderr, fmt::format("train_gpt2: rank {}: {}", communicator_.rank(), printable(line)));
    };
    const CheckpointWriter::Options writing{
        run_.from.run_folder,
        *run_.tokenizer,
        {.newest = options_.output.keep, .every = options_.output.keep_every}};
    checkpoints_.emplace(model_, communicator_, writing, simt::pinned_memory(), note);
}

// If a signal interrupted the evaluation of the checkpoint, it is repeated before the first step.
template <class T>
void Session<T>::start() {
    started_ = true;
    if (run_.from.state.evaluated) {
        stopped_ = in_any_process(communicator_, stop_requested());
        return;
    }
    evaluate(step_);
    save_if_due(step_);
}

template <class T>
int Session<T>::next_step() {
    if (!started_) start();
    return stopped_ || step_ == run_.schedule.steps ? 0 : ++step_;
}

template <class T>
const Batch& Session<T>::batch(int step, int micro) {
    if (fault_) return *batch_;
    try {
        batch_ = &reading_input([&]() -> const Batch& { return run_.loader->at(step, micro); });
    } catch (const InputFault& fault) {
        if (communicator_.size() == 1 || !batch_) throw;
        fault_ = fault;
    }
    return *batch_;
}

template <class T>
StepFlags Session<T>::flags() const {
    return {.stop = stop_requested(),
            .writing = checkpoints_ && checkpoints_->is_writing(),
            .unread = fault_.has_value()};
}

template <class T>
void Session<T>::record(int last) {
    while (state_.step < last) finish_step();
    if (checkpoints_) checkpoints_->poll(reduced_.writing);
}

template <class T>
void Session<T>::finish_step() {
    const StepResult result = model_.finish_update();
    if (result.any.unread) {
        // The next step may have begun; its update is not made either.
        while (model_.updates_in_flight() > 0) model_.finish_update();
        throw_together(communicator_, fault_);
    }
    const int step = ++state_.step;
    state_.val_loss.reset();
    state_.evaluated = true;  // evaluate() sets it to false until it is done
    if (is_first()) log_step(step, result);
    if (due(options_.output.log_layer_norms, step))
        log_->layer_norms(step, norms_by_layer(model_.table(), model_.squared_norms()));
    if (due(options_.system.check_replicas, step)) check_replicas(communicator_, model_.checksum(), step);
    reduced_ = result.any;
    // A step without targets says nothing about the weights.
    if (result.has_targets) state_.skipped = std::isfinite(result.grad_norm) ? 0 : state_.skipped + 1;
    if (state_.skipped == 0 && is_plausible(result.loss)) state_.last_finite_step = step;
    if (state_.skipped < options_.optimizer.max_skipped) return;
    if (checkpoints_) checkpoints_->finish();
    throw Error(
        fmt::format("{} steps in a row had a gradient norm that is not finite; the run ends at step {}",
                    state_.skipped, step));
}

template <class T>
void Session<T>::log_step(int step, const StepResult& result) {
    const double peak = mfu_->peak(), mfu = mfu_->of(result.ms);
    log_->train(step, result, run_.schedule.at(step), mfu, gpu_->take());
    if (mfu_->peak() > peak) log_->mfu_peak(step, mfu_->peak(), rate_text(mfu_->peak(), options_.world_size));
    if (model_.profile().end_step(result.ms)) log_profile(step);
}

// The peaks are measured a second time, because the machine may have been busy the first time.
template <class T>
void Session<T>::log_profile(int step) {
    constexpr size_t enough = size_t{2} << 30;  // the measurement takes less
    const Peaks again = simt::device_info().free_memory < enough
                            ? Peaks{}
                            : Peaks{measure_copy_bandwidth(), measure_matmul_rate(options_.system.dtype)};
    log_->profile(step, model_.profile().report(larger(run_.peaks, again)));
    for (const std::string& line : model_.gemm().chosen_algorithms()) log_->note(line);
}

template <class T>
bool Session<T>::must_pause(int step) const {
    const Options& o = options_;
    const int intervals[] = {o.evaluation.val_every,    o.evaluation.hellaswag_every,
                             o.evaluation.sample_every, o.output.checkpoint_every,
                             o.output.log_layer_norms,  o.system.check_replicas};
    const bool is_due =
        std::any_of(std::begin(intervals), std::end(intervals), [&](int every) { return due(every, step); });
    // all ranks must decide alike
    const bool stop = communicator_.size() == 1 ? stop_requested() : reduced_.stop;
    return is_due || stop || step <= last_profiled_ || step == run_.schedule.steps;
}

// Runs evaluation(stop), which takes `batches` batches over all ranks, and shows its progress.
template <class T>
template <class Evaluation>
auto Session<T>::show_progress(const char* what, size_t batches, const Evaluation& evaluation) {
    std::optional<Progress> progress;
    if (is_first()) progress.emplace(log_->status(), what, "batches", batches);
    size_t done = 0;
    return evaluation([&] {
        if (progress) progress->at(done);
        done = std::min(batches, done + static_cast<size_t>(communicator_.size()));
        return stop_requested();
    });
}

template <class T>
void Session<T>::evaluate(int step) {
    const bool last = step == run_.schedule.steps;
    const bool evaluates = run_.val_loader || run_.hellaswag || options_.evaluation.sample_every > 0;
    state_.val_loss.reset();
    state_.evaluated = false;
    if (last && evaluates && checkpoints_ && saved_step_ != step) save();
    if (ValidationLoader* const loader = run_.val_loader.get();
        loader && (due(options_.evaluation.val_every, step) || last)) {
        const auto result = show_progress("validating", loader->batches(), [&](const StopRequested& stop) {
            return ::evaluate(model_, *loader, run_.text_bytes, communicator_, stop);
        });
        if (result) {
            state_.val_loss = result->loss;
            log_->validation(step, result->loss, result->bits_per_byte);
        }
    }
    if (HellaSwag* const hellaswag = run_.hellaswag.get();
        hellaswag && (due(options_.evaluation.hellaswag_every, step) || last)) {
        const auto result = show_progress("HellaSwag", hellaswag->batches(), [&](const StopRequested& stop) {
            return ::evaluate(model_, *hellaswag, communicator_, stop);
        });
        if (result) log_->hellaswag(step, *result);
    }
    if (is_first() && options_.evaluation.sample_every > 0 &&
        (due(options_.evaluation.sample_every, step) || last)) {
        const std::string text = sample_text(model_, *run_.tokenizer, options_, step);
        if (!stop_requested()) log_->sample(step, text);
    }
    stopped_ = in_any_process(communicator_, stop_requested());
    state_.evaluated = !stopped_;
}

template <class T>
void Session<T>::save_if_due(int step) {
    if (!checkpoints_) return;
    const bool is_due =
        due(options_.output.checkpoint_every, step) || step == run_.schedule.steps || stopped_;
    if (saved_step_ != step && is_due) save();
    else if (saved_step_ == step && state_.evaluated) checkpoints_->add_evaluation(state_);
}

template <class T>
void Session<T>::save() {
    state_.outlier_detector = outliers_.state();
    checkpoints_->save(model_, state_);
    saved_step_ = state_.step;
    reduced_.writing = true;
}

// Called by all ranks. True if a checkpoint of the last finished step is complete.
template <class T>
bool Session<T>::save_finished_steps() {
    if (!checkpoints_ || state_.step == run_.from.step()) return false;
    if (saved_step_ != state_.step) save();
    return checkpoints_->finish();
}

template <class T>
void Session<T>::finish() {
    if (checkpoints_ && !checkpoints_->finish()) throw Error("the last checkpoint could not be written");
    log_->sync();
    if (!stopped_) return log_->note(fmt::format("done; the run is in {}", log_->folder()));
    std::string next;
    if (checkpoints_ && run_.from.checkpoint.empty() && saved_checkpoints(log_->folder()).empty())
        next = fmt::format("; it has no checkpoint yet, and --resume auto --out {} begins it again",
                           log_->folder());
    else if (checkpoints_) next = fmt::format("; --resume {} continues it", log_->folder());
    log_->note(fmt::format("stopped by a signal; everything is written to {}{}", log_->folder(), next));
}

template <class T>
void Session<T>::fail(const Error& error) {
    bool saved = false;
    try {
        while (state_.skipped < options_.optimizer.max_skipped && model_.updates_in_flight() > 0)
            finish_step();
        saved = dynamic_cast<const InputFault*>(&error) && save_finished_steps();
    } catch (const std::exception&) {}  // the error that is being handled came first
    if (checkpoints_) checkpoints_->wait();
    // The loss of its step is plausible, and nothing else was wrong with the model.
    const bool good = saved && state_.last_finite_step == state_.step;
    const std::string next =
        good ? "the last good checkpoint is " + checkpoint_folder(run_.from.run_folder, state_.step)
             : where_to_go_on();
    throw Error(fmt::format("{}; {}", error.what(), next), error.exit_code);
}

// Names the checkpoint to continue from, for the last line of a run that fails.
template <class T>
std::string Session<T>::where_to_go_on() const {
    const ResumePoint& from = run_.from;
    std::string good, newest;
    const auto consider = [&](const std::string& path, const SavedCheckpoint& saved) {
        newest = path;
        if (is_good(saved, state_.last_finite_step)) good = path;
    };
    if (!from.checkpoint.empty()) consider(from.checkpoint, {from.step(), from.state.val_loss});
    try {
        if (checkpoints_)
            for (const SavedCheckpoint& saved : saved_checkpoints(from.run_folder))
                consider(checkpoint_folder(from.run_folder, saved.step), saved);
    } catch (const std::exception&) {
        // The folder cannot be read; the error that ended the run is still printed.
    }
    if (!good.empty()) return "the last good checkpoint is " + good;
    return newest.empty() ? "there is no checkpoint to continue from"
                          : fmt::format("no checkpoint is known to be good; the newest is {}", newest);
}

template class Session<float>;
template class Session<bfloat16>;
