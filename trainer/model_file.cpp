#include "model_file.h"

#include <algorithm>
#include <cmath>

#include "file_access.h"
#include "hub_cache.h"
#include "hugging_face_reader.h"
#include "llmc_model.h"
#include "run_folder.h"
#include "tokenizer_files.h"
#include "training_state.h"

std::vector<float> ModelFile::values(const Tensor& tensor) const {
    std::vector<float> values = read(tensor);
    const auto broken = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    if (broken != values.end() && !is_noted_) {
        is_noted_ = true;
        note_on_stderr(
            fmt::format("note: {}: tensor {} holds {}; what a model with such weights computes means nothing", path_, tensor.name, *broken));
    }
    return values;
}

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
    CHECK(is_run_folder(run), "--best: {} is no run's folder; expected one, whose checkpoints have validation losses", run);
    const std::optional<std::string> checkpoint = best_checkpoint(run);
    CHECK(checkpoint, "--best: no checkpoint of {} has a validation loss; expected a run whose --val-every divides its --checkpoint-every", run);
    whole_checkpoint(*checkpoint);
    return open_hugging_face_model(*checkpoint);
}

std::unique_ptr<ModelFile> open_model(const std::string& path, WhichCheckpoint which) {
    const std::string place = is_there(path) ? path : cached_model(path);
    CHECK(!place.empty(), "{}: is not there; expected a checkpoint, a run's folder, a Hugging Face GPT-2 or a .bin of llm.c", path);
    if (which == WhichCheckpoint::best) return open_best(place);
    if (is_folder(place)) return open_folder(place);
    CHECK(!place.ends_with(".safetensors"), "{}: has no config.json in it; expected the folder of a Hugging Face GPT-2", place);
    return open_llmc_model(place);
}

std::string tokenizer_name(const ModelFile& file) {
    const std::string known = is_folder(file.path()) ? recognise_tokenizer(file.path()) : "";
    return known.empty() ? default_tokenizer(file.config().V) : known;
}
