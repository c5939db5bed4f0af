// convert: writes a model in another program's format.
//   convert MODEL --format hf|llmc-fp32|llmc-bf16 --out PATH
//   MODEL is anything that open_model opens: a checkpoint, a run's folder, a Hugging Face model, a .bin of
//   llm.c.
//   hf writes a folder that transformers opens (fp32, with the tokenizer's files); llmc-* writes a .bin of
//   llm.c, which has no place for the tokenizer.
#include <algorithm>
#include <filesystem>

#include "system/file_access.h"
#include "system/run_main.h"
#include "system/stop_signal.h"
#include "trainer/checkpoint/open_model.h"
#include "trainer/command_line/command_line.h"
#include "trainer/command_line/help_text.h"
#include "trainer/command_line/output_folder.h"
#include "trainer/models/hugging_face.h"
#include "trainer/models/llmc_model.h"
#include "trainer/models/model_file.h"
#include "trainer/tokenizer/tokenizer.h"

namespace fs = std::filesystem;

enum class Format { hugging_face, llmc_fp32, llmc_bf16 };
static const std::map<std::string, Format> formats = {
    {"hf", Format::hugging_face}, {"llmc-fp32", Format::llmc_fp32}, {"llmc-bf16", Format::llmc_bf16}};

// Called before each tensor: what is incomplete is removed before the program ends.
static void check_stop() {
    if (stop_requested()) throw Error("interrupted; nothing was written");
}

// UsageError if the output would be mixed with other files, or would replace one.
static void refuse_used_output(const std::string& out, Format format) {
    if (format == Format::hugging_face)  // files of another model would be read with it
        CHECK(entries_of(out).empty(), "--out {}: is not empty; choose another folder", out);
    else
        CHECK(!is_there(out) && !fs::is_symlink(out),
              "--out {}: exists already; choose another name, or remove it", out);
}

// Writes a Hugging Face folder, which must be new or empty.
static void write_folder(const std::string& folder, const ModelFile& model, const std::string& tokenizer) {
    const std::unique_ptr<Tokenizer> own = make_tokenizer_for(model.path(), model.config().V, tokenizer);
    const OutputFolder made(folder);
    try {
        write_hugging_face_metadata(folder, model.config(), *own);
        std::vector<float> values;
        write_hugging_face_model(folder + "/model.safetensors", model.table(), [&](const Tensor& tensor) {
            check_stop();
            values = model.values(tensor);
            return values.data();
        });
    } catch (...) {  // an incomplete model is useless and would block the next attempt
        std::error_code failed;
        std::vector<fs::path> written;
        for (const auto& entry : fs::directory_iterator(folder, failed)) written.push_back(entry.path());
        for (const fs::path& path : written) fs::remove_all(path, failed);
        throw;
    }
}

int main(int argc, char** argv) {
    std::string path, out, tokenizer;
    Format format = Format::hugging_face;
    bool best = false;
    CLI::App app("Writes a trained model in another program's format.", "convert");
    add_text(app, "MODEL", path, "PATH", model_path_help)->required();
    add_choice(app, "--format", format, formats,
               "format to write: a Hugging Face folder (hf), or a .bin file of llm.c");
    add_text(app, "--out", out, "PATH", "folder or file to write")->required();
    app.add_flag("--best", best, best_help);
    add_word_or_file(
        app, "--tokenizer", tokenizer, tokenizer_words,
        "tokenizer whose files are written to the folder; FILE is a tokenizer.json or its folder [the "
        "model's own]");
    set_examples(app,
                 {{"convert the best checkpoint of a run for transformers",
                   "convert runs/book --best --format hf --out my_model"},
                  {"convert GPT-2 for llm.c", "convert gpt2 --format llmc-bf16 --out gpt2_124M_bf16.bin"},
                  {"convert a model of llm.c for transformers",
                   "convert model_00010000.bin --format hf --out my_model"}});
    return run_main("convert", [&] {
        if (!parse(app, argc, argv)) return;
        CHECK(format == Format::hugging_face || app.get_option("--tokenizer")->count() == 0,
              "--tokenizer needs --format hf; a file of llm.c has no place for a tokenizer");
        refuse_used_output(out, format);
        const std::unique_ptr<ModelFile> model =
            open_model(path, best ? WhichCheckpoint::best : WhichCheckpoint::newest);
        refuse_used_output(out, format);  // another process may have been faster
        // A signal before this line ends the program at once, because nothing is written yet.
        stop_on({SIGINT, SIGTERM});
        answer_stop("\nconvert: stopping after this tensor\n");
        if (format == Format::hugging_face)
            write_folder(out, *model, tokenizer.empty() ? tokenizer_name(*model) : tokenizer);
        else
            write_llmc_model(out, *model, format == Format::llmc_fp32 ? LlmcVersion::fp32 : LlmcVersion::bf16,
                             check_stop);
        write_output(
            fmt::format("{}: {} parameters from {}\n", out, model->table().parameters(), model->path()),
            "the result");
    });
}
