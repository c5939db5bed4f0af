// A safetensors file: every tensor that its header names lies in the file and can be read.
#include "fuzz.h"
#include "trainer/formats/safetensors.h"

static void read(std::string_view bytes) {
    const MemoryFile memory(bytes);
    read_or_refuse([&] {
        const SafetensorsFile file(memory.path());
        for (const auto& entry : file.tensors()) {
            const SafetensorsFile::Tensor& tensor = entry.second;
            require(file.bytes(entry.first).size() == tensor.bytes);
            read_or_refuse([&] { require(file.floats(entry.first).size() == tensor.elements()); });
            read_or_refuse([&] { require(file.ints(entry.first).size() == tensor.elements()); });
        }
    });
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    read(as_text(data, size));
    read(with_header_length(as_text(data, size)));
    return 0;
}
