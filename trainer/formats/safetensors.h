// safetensors.h: named tensors in a file; the format of Hugging Face models, our checkpoints and reference
// dumps.
//   8-byte little-endian header length, JSON header {name: {dtype, shape, data_offsets: [begin, end]},
//   "__metadata__": {text: text}}, then the raw data, which the tensors cover exactly once.
//   https://huggingface.co/docs/safetensors
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "system/file_reader.h"

// Reads the header at once, and tensors as they are asked for. The header is not trusted: an inconsistency
// is a UsageError that names the file and the tensor.
class SafetensorsFile {
public:
    struct Tensor {
        std::string dtype;  // in the format's spelling: F32, BF16, I64, ...
        std::vector<size_t> shape;
        size_t begin, bytes;  // place in the file
        size_t elements() const;
    };

    explicit SafetensorsFile(const std::string& path);

    const std::string& path() const { return file_.path(); }
    const std::map<std::string, Tensor>& tensors() const { return tensors_; }
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    bool contains(const std::string& name) const { return tensors_.count(name) != 0; }

    // The tensor of that name; UsageError if there is none.
    const Tensor& at(const std::string& name) const;
    // The tensor's elements as floats (from F64, F32, BF16 or F16) or ints (from integers that fit an int);
    // UsageError for any other type or value. With `to`, as many as it has room for, from `first` on.
    std::vector<float> floats(const std::string& name) const;
    void floats(const std::string& name, std::span<float> to, size_t first = 0) const;
    std::vector<int> ints(const std::string& name) const;
    // The tensor's bytes as they are in the file.
    std::string bytes(const std::string& name) const;

private:
    void read_header(std::string_view header, size_t data_begin);

    FileReader file_;
    std::map<std::string, Tensor> tensors_;
    std::map<std::string, std::string> metadata_;
};

struct NamedTensor {
    std::string name, dtype;
    std::vector<size_t> shape;
    const void* data;
};

// Writes a file that is complete or absent (AtomicFile). Wider types come first, so that every tensor is
// aligned; otherwise the order is kept.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// The same for tensors that are not all in memory at once. data_of(i) is called once for every tensor and
// returns the bytes of tensors[i], valid until the next call; the tensors' own data pointers are not used.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<const void*(size_t)>& data_of);
