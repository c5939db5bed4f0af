#include "trainer/checkpoint/open_model.h"

#include <optional>

#include "system/error.h"
#include "system/file_access.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/formats/hub_cache.h"
#include "trainer/formats/hugging_face_reader.h"
#include "trainer/formats/llmc_model.h"

static std::unique_ptr<ModelFile> open_folder(const std::string& path) {
    if (is_checkpoint_folder(path)) {
        whole_checkpoint(path);
        return open_hugging_face_model(path);
    }
    if (is_there(path + "/config.json") || !is_run_folder(path)) return open_hugging_face_model(path);
    const std::optional<std::string> checkpoint = newest_checkpoint(path);
    CHECK(checkpoint, "{}: is the folder of a run that has no checkpoint yet", path);
    return open_hugging_face_model(*checkpoint);
}

static std::unique_ptr<ModelFile> open_best(const std::string& run) {
    CHECK(is_run_folder(run),
          "--best: {} is not a run's folder; expected one whose checkpoints have validation losses", run);
    const std::optional<std::string> checkpoint = best_checkpoint(run);
    CHECK(checkpoint,
          "--best: no checkpoint of {} has a validation loss; expected a run whose --val-every divides its "
          "--checkpoint-every",
          run);
    whole_checkpoint(*checkpoint);
    return open_hugging_face_model(*checkpoint);
}

std::unique_ptr<ModelFile> open_model(const std::string& path, WhichCheckpoint which) {
    const std::string place = is_there(path) ? path : cached_model(path);
    CHECK(!place.empty(),
          "{}: is not there; expected a checkpoint, a run's folder, a Hugging Face GPT-2 or a .bin of llm.c",
          path);
    if (which == WhichCheckpoint::best) return open_best(place);
    if (is_folder(place)) return open_folder(place);
    CHECK(!place.ends_with(".safetensors"),
          "{}: is a file without its config.json; expected the folder of a Hugging Face GPT-2", place);
    return open_llmc_model(place);
}
