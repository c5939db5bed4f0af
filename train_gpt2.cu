// train_gpt2.cu: the training loop. Text -> tokens -> DataLoader -> GPT2::forward -> loss -> GPT2::backward -> GPT2::update.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "data_directory.h"
#include "data_files.h"
#include "data_loader.h"
#include "error.h"
#include "evaluate.h"
#include "gpt2.h"
#include "logger.h"
#include "options.h"
#include "run_main.h"
#include "sampler.h"
#include "schedule.h"
#include "tokenizer.h"

namespace {

volatile std::sig_atomic_t stop_requested = 0;

// The first signal lets the current step end; a second one ends the program at once.
void request_stop(int signal) {
    stop_requested = 1;
    std::signal(signal, SIG_DFL);
}

bool due(int every, int step) { return every > 0 && step % every == 0; }

HostAllocator pinned_memory() { return {simt::pinned_malloc, simt::pinned_free}; }

std::string readable(size_t bytes) {
    if (bytes >= size_t{10} << 30) return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / 0x1p30);
    return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20);
}

GPT2Options model_options(const Options& o) {
    return {.B = o.batch_size,
            .T = o.seq_len,
            .total_batch = o.total_batch,
            .tf32 = o.dtype == DType::tf32,
            .recompute = o.recompute,
            .attention = o.attention,
            .seed = o.seed,
            .optimizer = o.optimizer,
            .momentum = o.momentum > 0};
}

template <class T>
size_t bytes_with_batch(const Options& o, int batch_size) {
    Options changed = o;
    changed.batch_size = batch_size;
    return total_bytes(GPT2<T>(o.config, model_options(changed)).memory_plan());
}

// The largest micro-batch that divides the step and fits; 0 if not even one sequence does.
template <class T>
int largest_batch(const Options& o, size_t memory) {
    const int samples = static_cast<int>(o.total_batch / static_cast<size_t>(o.seq_len));
    for (int b = samples; b >= 1; b--) {
        if (samples % b == 0 && bytes_with_batch<T>(o, b) <= memory) return b;
    }
    return 0;
}

// Prints what the run will allocate; UsageError, with what would fit, if that is more than there is.
template <class T>
void check_memory(const Options& o, const GPT2<T>& model, size_t memory) {
    const MemoryPlan plan = model.memory_plan();
    fmt::print("memory plan\n");
    for (const auto& [name, bytes] : plan) fmt::print("  {:<26}{:>12}\n", name, readable(bytes));
    const size_t total = total_bytes(plan);
    fmt::print("  {:<26}{:>12} of {} {}\n", "total", readable(total), readable(memory), o.device_memory ? "planned for" : "free");
    if (total <= memory) return;
    std::fflush(stdout);
    std::string advice = "a smaller model is needed";
    Options block = o;
    block.recompute = Recompute::block;
    if (const int b = largest_batch<T>(o, memory)) {
        advice = fmt::format("--batch-size {} would fit", b);
    } else if (const int with_recompute = largest_batch<T>(block, memory)) {
        advice = fmt::format("--batch-size {} --recompute block would fit", with_recompute);
    } else if (o.dtype != DType::bf16 && bytes_with_batch<bfloat16>(block, 1) <= memory) {
        advice = "--batch-size 1 --recompute block --dtype bf16 would fit";
    }
    throw UsageError(
        fmt::format("the run needs {}, but {} are {}; {}", readable(total), readable(memory), o.device_memory ? "planned for" : "free", advice));
}

// Text from the model, a token at a time, from the token that starts a text.
template <class T>
std::string sample_text(GPT2<T>& model, const Tokenizer& tokenizer, const Options& o, int step) {
    constexpr float temperature = 1.0f;  // what the model has learnt, neither sharpened nor blurred
    const int start = tokenizer.end_of_text().value_or('\n');
    std::vector<int> window = {start < o.config.V ? start : 0};
    std::string text;
    for (int i = 0; i < o.sample_tokens && !stop_requested; i++) {
        std::vector<float> logits = model.next_token_logits(window);
        logits.resize(std::min(logits.size(), static_cast<size_t>(tokenizer.vocab_size())));  // a model may have more tokens than its tokenizer
        const int token = sample_token(logits, temperature, {.seed = o.seed, .step = static_cast<uint64_t>(step), .index = static_cast<uint64_t>(i)});
        if (token == tokenizer.end_of_text()) break;
        text += tokenizer.token_bytes(token);
        if (window.size() == static_cast<size_t>(o.seq_len)) window.erase(window.begin());
        window.push_back(token);
    }
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
void train(Options o) {
    const simt::DeviceInfo device = simt::device_info();
    // On a GPU, kernels' code and libraries take some of what is free now.
    const size_t libraries = simt::is_gpu() ? std::min(device.free_memory, size_t{300} << 20) : 0;
    const size_t memory = o.device_memory.value_or(device.free_memory - libraries);
    if (o.batch_size == 0) {
        o.batch_size = largest_batch<T>(o, memory);
        CHECK(o.batch_size > 0, "not even one sequence of {} tokens fits into {}; expected a smaller model or --recompute block", o.seq_len,
              readable(memory));
    }
    GPT2<T> model(o.config, model_options(o));
    fmt::print("{} on {}\n", to_string(o.dtype), device.name);
    fmt::print("model: {} layers, {} heads, {} channels, context {}, vocabulary {} (padded to {}): {} parameters\n", o.config.L, o.config.NH,
               o.config.C, o.config.context, o.config.V, o.config.Vp(), model.table().parameters());
    fmt::print("step: {} tokens = {} x {} x {} micro-step{}\n", o.total_batch, o.batch_size, o.seq_len, o.accumulation(),
               o.accumulation() == 1 ? "" : "s");
    check_memory(o, model, memory);
    if (o.plan) return;

    const auto tokenizer = make_tokenizer(o.tokenizer);
    const DataSplits data = open_data(o.train_data.empty() ? data_directory() + "/tinyshakespeare.txt" : o.train_data, o.val_data, *tokenizer);
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
    // Data that cannot be trained on ends the run before it has a folder.
    loader.at(1, 0);
    if (val_loader) val_loader->at(0);
    model.allocate();
    if (o.initial) load_weights(model, *o.initial);

    Logger log(o.out.empty() ? new_run_folder() : o.out, schedule.steps, o.total_batch, o.log_every);
    log.run({{"options", o.values},
             {"model",
              {{"layers", o.config.L},
               {"heads", o.config.NH},
               {"channels", o.config.C},
               {"context", o.config.context},
               {"vocab", o.config.V},
               {"parameters", model.table().parameters()}}},
             {"batch", {{"batch_size", o.batch_size}, {"seq_len", o.seq_len}, {"micro_steps", o.accumulation()}, {"total_batch", o.total_batch}}},
             {"steps", schedule.steps},
             {"machine", device.name},
             {"versions", {{"flatgpt", "0.1.0"}, {"compiler", __VERSION__}}}});
    log.note(fmt::format("writing to {}", log.folder()));

    const auto stop = [] { return stop_requested != 0; };
    int skipped = 0;
    for (int step = 1; step <= schedule.steps && !stop_requested; step++) {
        const bool last = step == schedule.steps;
        const auto start = std::chrono::steady_clock::now();
        for (int micro = 0; micro < loader.micro_steps(); micro++) {
            model.forward(loader.at(step, micro));
            model.backward();
        }
        const StepResult result = model.update(o.optimizer_at(schedule.at(step)));
        const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
        log.train(step, result, schedule.at(step), elapsed.count());
        skipped = std::isfinite(result.grad_norm) ? 0 : skipped + 1;
        if (skipped == o.max_skipped)
            throw Error(fmt::format("{} steps in a row had a gradient norm that is not finite; the run ends at step {}", skipped, step));
        // A signal breaks off a validation or a sample; what is not whole is not written.
        if (val_loader && (due(o.val_every, step) || last)) {
            if (const auto result = evaluate(model, *val_loader, stop)) log.validation(step, result->loss);
        }
        if (hellaswag && (due(o.hellaswag_every, step) || last)) {
            if (const auto result = evaluate(model, *hellaswag, stop)) log.hellaswag(step, *result);
        }
        if (o.sample_every > 0 && (due(o.sample_every, step) || last)) {
            const std::string text = sample_text(model, *tokenizer, o, step);
            if (!stop_requested) log.sample(step, text);
        }
    }
    log.note(stop_requested ? fmt::format("stopped by a signal; everything is written to {}", log.folder())
                            : fmt::format("done; the run is in {}", log.folder()));
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("train_gpt2", [&] {
        const std::optional<Options> options = parse_options(argc, argv);
        if (!options) return;
        std::signal(SIGINT, request_stop);
        std::signal(SIGTERM, request_stop);
        std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a failed write, which says so
        simt::select_device();
        if (options->dtype == DType::bf16) train<bfloat16>(*options);
        else train<float>(*options);
    });
}
