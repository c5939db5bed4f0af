#include "trainer/models/model_file.h"

#include <algorithm>
#include <cmath>

#include "system/file_access.h"
#include "system/json_text.h"
#include "system/note.h"
#include "trainer/formats/hub_cache.h"
#include "trainer/tokenizer/tokenizer_files.h"

std::vector<float> ModelFile::values(const Tensor& tensor) const {
    std::vector<float> values = read(tensor);
    const auto broken =
        std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
    if (broken != values.end() && !is_noted_) {
        is_noted_ = true;
        note_on_stderr(fmt::format(
            "note: {}: tensor {} holds {}; the results of a model with such weights are meaningless", path_,
            tensor.name, *broken));
    }
    return values;
}

std::string tokenizer_name(const ModelFile& file) {
    if (!is_folder(file.path()))
        return default_tokenizer(file.config().V);  // a model of llm.c, as it makes them
    const std::string known = tokenizer_in(file.path());
    if (!known.empty()) return known;
    const std::string config = file.path() + "/config.json";
    const nlohmann::json source = read_json_object(config).value("_name_or_path", nlohmann::json());
    if (file.config().V >= gpt2_vocab_size &&
        (is_gpt2_of_openai(file.path()) ||
         (source.is_string() && is_gpt2_of_openai(source.get<std::string>()))))
        return "gpt2";
    const std::string fetch = fetch_command_for(file.path());
    note_on_stderr(fmt::format(
        "note: {}: has no tokenizer beside it, so its tokens are taken and shown as numbers; {}if they are "
        "GPT-2's, say --tokenizer gpt2, if they are bytes, --tokenizer byte, else --tokenizer FILE",
        file.path(), fetch.empty() ? "" : "fetch it with: " + fetch + "; or, "));
    return "none";
}
