// evaluate_gpt2.cu: evaluates a trained model: loss and perplexity on a validation split, HellaSwag; as
// text or as JSON.
//   evaluate_gpt2 CHECKPOINT [--val-data GLOB] [--hellaswag FILE] [--json]
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/simt/pinned_memory.h"
#include "system/atomic_file.h"
#include "system/file_access.h"
#include "system/print_line.h"
#include "system/printable.h"
#include "system/run_main.h"
#include "system/status_line.h"
#include "system/stop_signal.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/data/data_files.h"
#include "trainer/data/shard_tokenizer.h"
#include "trainer/distributed/single_process.h"
#include "trainer/engine/quantized_weights.h"
#include "trainer/inference/evaluate.h"
#include "trainer/models/families.h"
#include "trainer/models/model_file.h"
#include "trainer/run/evaluate_options.h"
#include "trainer/run/memory_fit.h"

namespace {

using Json = nlohmann::ordered_json;

// The result of an evaluation; Error if it was interrupted.
template <class Result>
Result whole(std::optional<Result> result) {
    if (!result) throw Error("interrupted; the evaluation is not complete");
    return std::move(*result);
}

void write_scores(const std::string& path, const HellaSwag& hellaswag,
                  const std::vector<EndingScores>& scores) {
    std::string lines;
    for (size_t i = 0; i < scores.size(); i++) {
        const HellaSwagExample& example = hellaswag.examples()[i];
        const Json line = {{"ind", example.index},
                           {"label", example.label},
                           {"sum", scores[i].sum},
                           {"mean", scores[i].mean}};
        lines += line.dump() + "\n";
    }
    write_atomically(path, lines);
}

std::string text_of(const Json& result) {
    std::string text;
    if (result.contains("loss")) {
        const Json& bits = result["bits_per_byte"];
        text = fmt::format("loss {:.6f}, perplexity {:.4f}{}, on {} tokens\n", result["loss"].get<double>(),
                           result["perplexity"].get<double>(),
                           bits.is_null() ? "" : fmt::format(", {:.6f} bits per byte", bits.get<double>()),
                           result["tokens"].get<size_t>());
    }
    if (result.contains("hellaswag")) {
        const Json& h = result["hellaswag"];
        text += fmt::format("HellaSwag accuracy {:.4f}, by mean log-likelihood {:.4f}, on {} examples\n",
                            h["accuracy"].get<double>(), h["accuracy_norm"].get<double>(),
                            h["examples"].get<size_t>());
    }
    return text;
}

// Runs evaluation(stop), which takes `batches` batches, and shows its progress on stderr.
template <class Evaluation>
auto show_progress(const char* what, size_t batches, const Evaluation& evaluation) {
    StatusLine line(stderr);
    Progress progress(line, std::string("evaluate_gpt2: ") + what, "batches", batches);
    size_t done = 0;
    return evaluation([&] {
        progress.at(done++);
        return stop_requested();
    });
}

void read_through(const ValidationLoader& loader) {
    StatusLine line(stderr);
    Progress progress(line, "evaluate_gpt2: reading the data", "%", 100);
    loader.check([&](double done) {
        if (stop_requested()) throw Error("interrupted; nothing was evaluated");
        progress.at(static_cast<size_t>(100 * done));
    });
}

// Error for a broken model, in which no ending would be the likeliest and the accuracy would be 0.
void check_finite(const std::vector<EndingScores>& scores) {
    for (const EndingScores& example : scores) {
        for (const double sum : example.sum) {
            if (!std::isfinite(sum))
                throw Error("the model's likelihoods of HellaSwag's endings are not finite");
        }
    }
}

template <class T>
void evaluate_all(const EvaluateOptions& o) {
    const auto file = open_model(o.checkpoint, o.best ? WhichCheckpoint::best : WhichCheckpoint::newest);
    const ModelConfig& config = file->config();
    CHECK(o.seq_len <= config.context, "--seq-len {} is longer than the model's context of {}", o.seq_len,
          config.context);
    int seq_len = o.seq_len > 0 ? o.seq_len : config.context;

    const auto tokenizer =
        make_tokenizer_for(file->path(), config.V, o.tokenizer.empty() ? tokenizer_name(*file) : o.tokenizer);
    const Note say = [](const std::string& line) { print_line(stderr, printable("evaluate_gpt2: " + line)); };
    std::vector<TokenShard> shards;
    std::optional<ValidationLoader> val_loader;
    std::optional<HellaSwag> hellaswag;
    const HostAllocator pinned = simt::pinned_memory();
    std::vector<int> text_bytes;
    if (!o.val_data.empty()) {
        shards =
            open_split({o.val_data}, *tokenizer, {.val_T = seq_len, .note = say, .stop = stop_requested});
        text_bytes = text_bytes_of_tokens(*tokenizer, shards, say);
    }
    std::vector<HellaSwagExample> examples;
    std::vector<EndingScores> scores;
    if (!o.hellaswag.empty()) {
        examples = read_hellaswag(o.hellaswag, *tokenizer, say);
        // no more memory than the longest row needs
        if (o.val_data.empty()) seq_len = std::min(seq_len, longest_row(examples));
    }

    Model<T> model(make_family<T>(config), {.B = o.batch_size,
                                            .T = seq_len,
                                            .training = false,
                                            .tf32 = o.dtype == DType::tf32,
                                            .attention = o.attention});
    check_fits(model.memory_plan(), fmt::format("--batch-size {}", o.batch_size),
               "a smaller batch size or --seq-len");
    // The data and the place of the scores are checked before the model is loaded.
    CHECK(!is_folder(o.hellaswag_scores), "--hellaswag-scores {}: is a folder; expected a file to write",
          o.hellaswag_scores);
    if (!o.hellaswag_scores.empty()) AtomicFile{o.hellaswag_scores};
    if (!o.val_data.empty()) {
        val_loader.emplace(shards, o.batch_size, seq_len, config.V, static_cast<size_t>(o.val_steps), pinned);
        read_through(*val_loader);
    }
    if (!o.hellaswag.empty()) hellaswag.emplace(std::move(examples), o.batch_size, seq_len, config.V, pinned);
    model.allocate();
    load_weights(model, *file);
    if (o.int8) quantize_weights(model);
    if (hellaswag) hellaswag->note_shortened(say);

    Json result = Json::object();
    SingleProcess alone;
    if (val_loader) {
        const Evaluation evaluation =
            whole(show_progress("loss", val_loader->batches(), [&](const StopRequested& stop) {
                return evaluate(model, *val_loader, text_bytes, alone, stop);
            }));
        if (!std::isfinite(evaluation.loss)) throw Error("the model's loss is not finite");
        result = {
            {"loss", evaluation.loss}, {"perplexity", evaluation.perplexity}, {"tokens", evaluation.tokens}};
        result["bits_per_byte"] = evaluation.bits_per_byte ? Json(*evaluation.bits_per_byte) : Json(nullptr);
    }
    if (hellaswag) {
        scores = whole(show_progress("HellaSwag", hellaswag->batches(), [&](const StopRequested& stop) {
            return score_endings(model, *hellaswag, alone, stop);
        }));
        check_finite(scores);
        const HellaSwagResult found = count_right(hellaswag->examples(), scores);
        result["hellaswag"] = {{"accuracy", found.accuracy},
                               {"accuracy_norm", found.accuracy_norm},
                               {"examples", found.examples}};
    }
    write_output(o.json ? result.dump() + "\n" : text_of(result), "the result");
    // The result is not lost if these cannot be written.
    if (!o.hellaswag_scores.empty()) write_scores(o.hellaswag_scores, *hellaswag, scores);
}

}  // namespace

int main(int argc, char** argv) {
    return run_main("evaluate_gpt2", [&] {
        const std::optional<EvaluateOptions> options = parse_evaluate_options(argc, argv);
        if (!options) return;
        stop_on({SIGINT, SIGTERM});
        answer_stop("\nevaluate_gpt2: stopping after this batch\n");
        simt::select_device();
        check_dtype(options->dtype, simt::device_info());
        if (options->dtype == DType::bf16) evaluate_all<bfloat16>(*options);
        else evaluate_all<float>(*options);
    });
}
