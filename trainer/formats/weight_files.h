// weight_files.h: the weights of a Hugging Face folder, which are in model.safetensors or in several files
// that model.safetensors.index.json names.
//   https://huggingface.co/docs/safetensors
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/formats/safetensors.h"

// All tensors of the folder's weight files, under names without the prefix of the model's class, such as
// "transformer.", and without those that torch.compile and DistributedDataParallel put before it.
class WeightFiles {
public:
    // Opens the files. UsageError if one is missing or damaged, or a tensor is missing or present twice.
    WeightFiles(const std::string& folder, const std::string& prefix);

    struct Stored {
        const SafetensorsFile* file;
        std::string name;  // its name in the file
        const SafetensorsFile::Tensor& tensor() const { return file->at(name); }
    };
    const std::map<std::string, Stored>& tensors() const { return tensors_; }
    // The tensor, by its name with or without prefixes; nullptr if there is none.
    const Stored* find(const std::string& name) const;
    std::string without_prefixes(std::string name) const;
    // Moves a tensor to another name, if there is a tensor of the first name and none of the second.
    void rename(const std::string& from, const std::string& to);

private:
    const SafetensorsFile& open(const std::string& path);
    void open_shards(const std::string& folder, const std::string& index);

    std::vector<std::string> prefixes_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, Stored> tensors_;
};
