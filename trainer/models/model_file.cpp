#include "trainer/models/model_file.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "system/file_access.h"
#include "system/json_text.h"
#include "system/note.h"
#include "trainer/formats/hub_cache.h"
#include "trainer/tokenizer/tokenizer_files.h"

void ModelFile::values(const Tensor& tensor, size_t first, std::span<float> to) const {
    const std::span<float> stored =
        to.first(std::min(to.size(), tensor.unpadded_elements - std::min(first, tensor.unpadded_elements)));
    if (!stored.empty()) read(tensor, first, stored);
    std::ranges::fill(to.subspan(stored.size()), 0.0f);
    if (is_noted_) return;
    const auto is_broken = [](float value) {
        return (std::bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u;
    };
    // A search that may end early is not vectorised, and takes as long as reading.
    uint32_t broken = 0;
    for (const float value : stored) broken |= is_broken(value);
    if (broken == 0) return;
    is_noted_ = true;
    note_on_stderr(
        fmt::format("note: {}: tensor {} holds {}; the results of a model with such weights are meaningless",
                    path_, tensor.name, *std::ranges::find_if(stored, is_broken)));
}

std::vector<float> ModelFile::values(const Tensor& tensor) const {
    std::vector<float> values(tensor.elements);
    this->values(tensor, 0, values);
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
