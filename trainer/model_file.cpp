#include "model_file.h"

#include <filesystem>

#include "hugging_face_reader.h"
#include "tokenizer_files.h"

namespace fs = std::filesystem;

std::unique_ptr<ModelFile> open_model(const std::string& path) {
    std::error_code unknown;
    CHECK(fs::exists(path, unknown), "{}: is not there; expected a checkpoint, a run's folder or a Hugging Face GPT-2", path);
    return open_hugging_face_model(path);
}

std::string tokenizer_name(const ModelFile& file) {
    std::error_code unknown;
    const std::string known = fs::is_directory(file.path(), unknown) ? recognise_tokenizer(file.path()) : "";
    if (!known.empty()) return known;
    return file.config().V <= 256 ? "byte" : "gpt2";
}
