#include "trainer/checkpoint/open_model.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "system/error.h"
#include "system/file_access.h"
#include "system/file_reader.h"
#include "system/text_encoding.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/formats/hub_cache.h"
#include "trainer/models/hugging_face_reader.h"
#include "trainer/models/llmc_model.h"

// The newest checkpoint-N of a folder that a Trainer of transformers wrote to; "" if it is none.
static std::string newest_of_trainer(const std::string& folder) {
    constexpr std::string_view name = "checkpoint-";
    std::string newest;
    long most = -1;
    for (const std::filesystem::path& path : entries_of(folder)) {
        const std::string entry = path.filename();
        if (!entry.starts_with(name) || !is_there(path.string() + "/config.json")) continue;
        const long step = std::strtol(entry.c_str() + name.size(), nullptr, 10);
        if (step > most) most = step, newest = path;
    }
    return newest;
}

static std::unique_ptr<ModelFile> open_folder(const std::string& path) {
    if (is_checkpoint_folder(path)) {
        whole_checkpoint(path, CheckpointFiles::model);
        return open_hugging_face_model(path);
    }
    if (const std::string newest = newest_of_trainer(path);
        !is_there(path + "/config.json") && !newest.empty())
        throw UsageError(
            fmt::format("{}: is the output folder of a Trainer of transformers; expected one of its "
                        "checkpoints, such as {}",
                        path, newest));
    CHECK(!is_there(path + "/adapter_config.json"),
          "{}: is an adapter of PEFT, without the model's weights; expected the whole model: "
          "merge_and_unload() "
          "there, then save_pretrained()",
          path);
    if (is_there(path + "/config.json")) return open_hugging_face_model(path);
    CHECK(is_run_folder(path),
          "{}: has no config.json; expected the folder of a Hugging Face GPT-2, Llama, Qwen3 or nanochat, a "
          "run or a checkpoint",
          path);
    const std::string checkpoint =
        newest_checkpoint(path, note_on_stderr, CheckpointNames::final_only, CheckpointFiles::model).path;
    CHECK(!checkpoint.empty(), "{}: is the folder of a run that has no checkpoint yet", path);
    return open_hugging_face_model(checkpoint);
}

static std::unique_ptr<ModelFile> open_best(const std::string& run) {
    CHECK(is_run_folder(run),
          "--best: {} is not a run's folder; expected one whose checkpoints have validation losses", run);
    const std::optional<std::string> checkpoint = best_checkpoint(run);
    CHECK(checkpoint,
          "--best: no checkpoint of {} has a validation loss; expected a run whose --val-every divides its "
          "--checkpoint-every",
          run);
    whole_checkpoint(*checkpoint, CheckpointFiles::model);
    return open_hugging_face_model(*checkpoint);
}

// Files of other programs. torch.save writes a zip archive, or in old versions a pickle of protocol 2.
static void refuse_other_formats(const std::string& path) {
    const std::string bytes = FileReader(path).text(0, 64);  // enough for each of these
    check_fetched(path, bytes);
    CHECK(
        !bytes.starts_with("PK\3\4") && !bytes.starts_with("\x80\2"),
        "{}: is a pickle of PyTorch, as nanoGPT's ckpt.pt, which is not read; expected safetensors: load it "
        "there, and save it as a GPT2LMHeadModel of transformers (save_pretrained)",
        path);
    CHECK(
        !bytes.starts_with("GGUF"),
        "{}: is llama.cpp's GGUF, which is not read; expected the Hugging Face folder that it was made from",
        path);
}

std::unique_ptr<ModelFile> open_model(const std::string& path, WhichCheckpoint which) {
    const std::string found = is_there(path) ? path : cached_model(path);
    CHECK(!found.empty(),
          "{}: is not there; expected a checkpoint, a run's folder, a Hugging Face GPT-2, Llama, Qwen3 or "
          "nanochat, or a .bin of llm.c",
          path);
    if (which == WhichCheckpoint::best) return open_best(found);
    if (is_folder(found)) return open_folder(found);
    CHECK(!found.ends_with(".safetensors"),
          "{}: is a file without its config.json; expected the folder of a Hugging Face GPT-2, Llama, "
          "Qwen3 or nanochat",
          found);
    refuse_other_formats(found);
    return open_llmc_model(found);
}
