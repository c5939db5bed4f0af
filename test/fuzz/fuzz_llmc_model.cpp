// A model of llm.c: an accepted model has every tensor in the file.
#include <algorithm>
#include <array>

#include "fuzz.h"
#include "trainer/models/llmc_model.h"

static void read(std::string_view bytes) {
    const MemoryFile memory(bytes);
    read_or_refuse([&] {
        const std::unique_ptr<ModelFile> file = open_llmc_model(memory.path());
        for (const Tensor& tensor : file->table().tensors())
            require(file->values(tensor).size() == tensor.elements);
    });
}

// The input with the sizes of a small model in its header, and with the length of such a model.
static std::string small_model(std::string_view input) {
    // header [2] context, V, L, NH, C, Vp
    static constexpr std::array<uint32_t, 6> most = {16, 300, 3, 4, 16, 400};
    std::string bytes(input);
    bytes.resize(std::max(bytes.size(), size_t{1024}));
    std::array<uint32_t, 8> header;
    std::memcpy(header.data(), bytes.data(), sizeof(header));
    header[0] = 20240326;
    header[1] = header[1] % 2 ? 3 : 5;
    for (size_t i = 0; i < most.size(); i++) header[i + 2] = header[i + 2] % most[i] + 1;
    std::memcpy(bytes.data(), header.data(), sizeof(header));
    const size_t context = header[2], L = header[4], C = header[6], Vp = header[7];
    const size_t elements = Vp * C + context * C + L * (12 * C * C + 13 * C) + 2 * C;
    bytes.resize(1024 + elements * (header[1] == 3 ? 4 : 2));
    return bytes;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    read(as_text(data, size));
    read(small_model(as_text(data, size)));
    return 0;
}
