// A safetensors file: every tensor that its header names lies in the file and can be read.
#include <cstring>

#include "fuzz.h"
#include "safetensors.h"

static void read(std::string_view bytes) {
    const MemoryFile memory(bytes);
    read_or_refuse([&] {
        const SafetensorsFile file(memory.path());
        for (const auto& entry : file.tensors()) {
            const SafetensorsFile::Tensor& tensor = entry.second;
            touch({static_cast<const char*>(tensor.data), tensor.bytes});
            read_or_refuse([&] { require(file.floats(entry.first).size() == tensor.elements()); });
            read_or_refuse([&] { require(file.ints(entry.first).size() == tensor.elements()); });
        }
    });
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    read(as_text(data, size));
    // Again with a header length that lies within the file: it is the first thing that a mutation breaks, and nothing behind it is seen then.
    if (size < sizeof(uint64_t)) return 0;
    std::string bytes(as_text(data, size));
    uint64_t header_bytes;
    std::memcpy(&header_bytes, data, sizeof(header_bytes));
    const size_t braces = bytes.rfind('}');
    header_bytes = braces != bytes.npos && braces >= sizeof(header_bytes) ? braces + 1 - sizeof(header_bytes) : header_bytes % size;
    std::memcpy(bytes.data(), &header_bytes, sizeof(header_bytes));
    read(bytes);
    return 0;
}
