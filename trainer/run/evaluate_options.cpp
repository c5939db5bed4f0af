#include "trainer/run/evaluate_options.h"

#include "trainer/command_line/command_line.h"
#include "trainer/command_line/help_text.h"
#include "trainer/engine/quantized_weights.h"
#include "trainer/tokenizer/tokenizer.h"

std::optional<EvaluateOptions> parse_evaluate_options(int argc, const char* const* argv) {
    EvaluateOptions o;
    CLI::App app("Evaluates a trained model: loss and perplexity on validation data, accuracy on HellaSwag.",
                 "evaluate_gpt2");
    add_text(app, "CHECKPOINT", o.checkpoint, "PATH", model_path_help)->required();
    add_text(app, "-j,--val-data", o.val_data, "GLOB",
             "token shards or texts to measure loss and perplexity on: a file, a folder, or a pattern in "
             "quotes");
    add_text(app, "--hellaswag", o.hellaswag, "FILE",
             "HellaSwag examples to score the model on: the published .jsonl file or llm.c's .bin file");
    add_text(app, "--hellaswag-scores", o.hellaswag_scores, "FILE",
             "file to write the log-likelihoods of every example to, one JSON object per line");
    add_word_or_file(
        app, "--tokenizer", o.tokenizer, tokenizer_words,
        "how texts become tokens; gpt2-eot: as gpt2, and <|endoftext|> in a text is the token that "
        "ends it; FILE is a tokenizer.json or its folder; none accepts token shards only [the "
        "model's own]");
    add_number(app, "-b,--batch-size", o.batch_size, 1, 1 << 20,
               "sequences computed together; affects speed and memory, not the result");
    add_number(app, "-t,--seq-len", o.seq_len, 1, 1 << 20, "tokens in a sequence")
        ->default_str("the model's context");
    add_number(app, "-m,--val-steps", o.val_steps, 0, most, "batches to measure; 0: all data");
    add_choice(app, "--dtype", o.dtype, dtypes, dtype_help);
    add_choice(app, "--quantize", o.int8, quantizations,
               "int8: round the weights as generate_gpt2 --quantize int8 does");
    add_choice(app, "--attention", o.attention, attentions, attention_help);
    app.add_flag("--best", o.best, best_help);
    app.add_flag("--json", o.json, "print one JSON object instead of text");
    set_examples(app, {{"measure how well the best checkpoint of a run predicts a text",
                        "evaluate_gpt2 runs/book --best --val-data other_book.txt"},
                       {"measure the loss of GPT-2 on FineWeb",
                        "evaluate_gpt2 gpt2 --val-data 'fineweb10B/fineweb_val_*.bin' --dtype bf16"},
                       {"score GPT-2 on HellaSwag and print JSON",
                        "evaluate_gpt2 gpt2 --hellaswag hellaswag_val.jsonl --json"}});
    if (!parse(app, argc, argv)) return std::nullopt;
    CHECK(!o.val_data.empty() || !o.hellaswag.empty(),
          "there is nothing to evaluate; expected --val-data, --hellaswag or both");
    CHECK(o.hellaswag_scores.empty() || !o.hellaswag.empty(), "--hellaswag-scores {} needs --hellaswag",
          o.hellaswag_scores);
    return o;
}
