#include "evaluate_options.h"

#include "command_line.h"
#include "quantized_weights.h"

std::optional<EvaluateOptions> parse_evaluate_options(int argc, const char* const* argv) {
    EvaluateOptions o;
    CLI::App app("Judges a trained model: its loss and perplexity on a validation split, and HellaSwag.", "evaluate_gpt2");
    app.option_defaults()->always_capture_default();
    app.add_option("CHECKPOINT", o.checkpoint, model_path_help)->required()->default_str("");
    app.add_option("-j,--val-data", o.val_data, "token shards (.bin) or texts (.txt), a glob: their loss and perplexity");
    app.add_option("--hellaswag", o.hellaswag, "HellaSwag: the published .jsonl, or llm.c's .bin");
    app.add_option("--hellaswag-scores", o.hellaswag_scores, "file to write every example's log-likelihoods to, a JSON object a line");
    app.add_option("--tokenizer", o.tokenizer, "for texts and .jsonl: gpt2 or byte [the model's]")->check(CLI::IsMember({"gpt2", "byte"}));
    app.add_option("-b,--batch-size", o.batch_size, "sequences at a time; it changes speed and memory, not the result")
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("-t,--seq-len", o.seq_len, "tokens of a sequence [the model's context]")->check(CLI::Range(1, 1 << 20))->default_str("");
    app.add_option("-m,--val-steps", o.val_steps, "batches of the validation split, 0: all of it")->check(CLI::Range(0, 1 << 30));
    add_choice(app, "--dtype", o.dtype, dtypes, "of parameters and activations");
    add_choice(app, "--quantize", o.int8, quantizations, "weights rounded as generate_gpt2 --quantize rounds them");
    add_choice(app, "--attention", o.attention, attentions, "implementation of attention");
    app.add_flag("--json", o.json, "print one JSON object instead of text");
    if (!parse(app, argc, argv)) return std::nullopt;
    CHECK(!o.val_data.empty() || !o.hellaswag.empty(), "there is nothing to evaluate; expected --val-data, --hellaswag or both");
    CHECK(o.hellaswag_scores.empty() || !o.hellaswag.empty(), "--hellaswag-scores {} needs --hellaswag", o.hellaswag_scores);
    return o;
}
