#include "trainer/formats/weight_files.h"

#include <nlohmann/json.hpp>
#include <set>

#include "system/error.h"
#include "system/file_access.h"
#include "system/json_text.h"
#include "trainer/formats/hub_cache.h"

WeightFiles::WeightFiles(const std::string& folder, const std::string& prefix)
    : prefixes_{prefix, "_orig_mod.", "module."} {
    const std::string single = folder + "/model.safetensors", index = single + ".index.json";
    if (is_there(single)) open(single);
    else if (is_there(index)) open_shards(folder, index);
    else
        throw UsageError(is_there(folder + "/pytorch_model.bin")
                             ? pickle_message(folder, folder)
                             : folder + ": has no model.safetensors and no model.safetensors.index.json");
}

const WeightFiles::Stored* WeightFiles::find(const std::string& name) const {
    const auto found = tensors_.find(without_prefixes(name));
    return found == tensors_.end() ? nullptr : &found->second;
}

std::string WeightFiles::without_prefixes(std::string name) const {
    for (bool found = true; found;) {
        found = false;
        for (const std::string& prefix : prefixes_)
            if (name.starts_with(prefix)) name.erase(0, prefix.size()), found = true;
    }
    return name;
}

void WeightFiles::rename(const std::string& from, const std::string& to) {
    if (tensors_.contains(to)) return;
    auto tensor = tensors_.extract(from);
    if (tensor.empty()) return;
    tensor.key() = to;
    tensors_.insert(std::move(tensor));
}

const SafetensorsFile& WeightFiles::open(const std::string& path) {
    const SafetensorsFile& file = *files_.emplace_back(std::make_unique<SafetensorsFile>(path));
    for (const auto& [name, tensor] : file.tensors()) {
        const auto [stored, is_new] = tensors_.emplace(without_prefixes(name), Stored{&file, name});
        CHECK(is_new, "{}: tensor {} is present twice: also as {} in {}", path, shown(name),
              shown(stored->second.name), stored->second.file->path());
    }
    return file;
}

void WeightFiles::open_shards(const std::string& folder, const std::string& index) {
    const nlohmann::json root = read_json_object(index);
    const auto map = root.find("weight_map");
    CHECK(map != root.end() && map->is_object() && !map->empty(),
          "{}: has no weight_map; expected {{tensor: file}}", index);
    std::map<std::string, std::set<std::string>> names;  // names of each file's tensors
    for (const auto& [name, file] : map->items()) {
        CHECK(file.is_string(), "{}: the file of tensor {} is {}; expected a name", index, shown(name),
              shown(file));
        const std::string text = file.get<std::string>();
        // A file in another folder does not belong to the model.
        CHECK(text.ends_with(".safetensors") && text.find('/') == text.npos && text.find('\0') == text.npos,
              "{}: the file of tensor {} is {}; expected a .safetensors file beside the index", index,
              shown(name), shown(file));
        names[text].insert(name);
    }
    for (const auto& [file_name, expected] : names) {
        const SafetensorsFile& file = open(folder + "/" + file_name);
        for (const std::string& name : expected)
            CHECK(file.contains(name), "{}: has no tensor {}, which {} lists for it", file.path(),
                  shown(name), index);
        for (const auto& [name, tensor] : file.tensors())
            CHECK(expected.contains(name), "{}: tensor {} is not in {}", file.path(), shown(name), index);
    }
}
