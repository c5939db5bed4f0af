#include "trainer/formats/model_file.h"

#include <algorithm>
#include <cmath>

#include "system/file_access.h"
#include "system/note.h"
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
    const std::string known = is_folder(file.path()) ? tokenizer_in(file.path()) : "";
    return known.empty() ? default_tokenizer(file.config().V) : known;
}
