#include "trainer/models/llmc_model.h"

#include <array>
#include <bit>
#include <cstdint>
#include <map>

#include "kernels/simt/bfloat16.h"
#include "system/atomic_file.h"
#include "system/file_reader.h"
#include "trainer/models/families.h"
#include "trainer/tokenizer/token.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian and so are we");

namespace {

constexpr int32_t magic = 20240326;
using LlmcHeader = std::array<int32_t, 256>;

LlmcHeader read_header(const FileReader& file) {
    CHECK(file.size() >= sizeof(LlmcHeader),
          "{}: {} bytes are too short for a model of llm.c, whose header alone has {}", file.path(),
          file.size(), sizeof(LlmcHeader));
    LlmcHeader header;
    file.read(header.data(), 0, sizeof(header));
    CHECK(header[0] == magic, "{}: is not a model of llm.c: magic number {}, expected {}", file.path(),
          header[0], magic);
    CHECK(header[1] == 3 || header[1] == 5, "{}: model of version {}; expected 3 (fp32) or 5 (bf16)",
          file.path(), header[1]);
    return header;
}

ModelConfig shape_of(const LlmcHeader& header, const std::string& path) {
    const auto size = [&](size_t at, const char* name, int32_t most) {
        CHECK(header[at] >= 1 && header[at] <= most, "{}: its header says {} {}; expected 1 to {}", path,
              header[at], name, most);
        return header[at];
    };
    const ModelConfig config{size(3, "tokens of vocabulary", max_vocab_size),
                             size(2, "tokens of context", 1 << 20), size(4, "layers", 4096),
                             size(5, "heads", 4096), size(6, "channels", 1 << 17)};
    CHECK(header[7] >= config.V && header[7] <= max_vocab_size,
          "{}: its header says a vocabulary padded to {}; expected {} to {}", path, header[7], config.V,
          max_vocab_size);
    check_shape(path, config);
    return config;
}

class LlmcModel : public ModelFile {
public:
    explicit LlmcModel(FileReader file) : LlmcModel(read_header(file), std::move(file)) {}

    void read(const Tensor& tensor, size_t first, std::span<float> to) const override {
        const auto as_float = [](auto value) { return static_cast<float>(value); };
        const size_t begin = places_.at(tensor.name) + first * element_bytes_;
        if (element_bytes_ == sizeof(float)) read_elements<float>(file_, begin, to, as_float);
        else read_elements<bfloat16>(file_, begin, to, as_float);
    }

private:
    LlmcModel(const LlmcHeader& header, FileReader&& file)
        : ModelFile(file.path(), shape_of(header, file.path())),
          file_(std::move(file)),
          element_bytes_(header[1] == static_cast<int32_t>(LlmcVersion::fp32) ? sizeof(float)
                                                                              : sizeof(bfloat16)) {
        // The header's limits keep every product far below 2^64.
        size_t end = sizeof(LlmcHeader);
        for (const TensorId id : family_of(config()).llmc_order(config())) {
            const Tensor& tensor = table()[id];
            places_[tensor.name] = end;
            const size_t padded_rows = static_cast<size_t>(header[7]);
            end +=
                (tensor.unpadded_rows > 0 ? padded_rows * tensor.shape[1] : tensor.elements) * element_bytes_;
        }
        CHECK(file_.size() == end,
              "{}: has {} bytes; expected {} for the {} layers, {} channels, context {} and padded "
              "vocabulary {} of its header; it is damaged or cut short",
              path(), file_.size(), end, config().L, config().C, config().context, header[7]);
    }

    FileReader file_;
    size_t element_bytes_;
    std::map<std::string, size_t> places_;  // byte offsets from the file's start
};

}  // namespace

std::unique_ptr<ModelFile> open_llmc_model(const std::string& path) {
    return std::make_unique<LlmcModel>(FileReader(path));
}

void write_llmc_model(const std::string& path, const ModelFile& model, LlmcVersion version,
                      const std::function<void()>& before_tensor) {
    const ModelConfig& config = model.config();
    const FamilyDescription& family = family_of(config);
    CHECK(family.llmc_order, "{}: is a {}, for which llm.c has no file format; expected a GPT-2",
          model.path(), family.title);
    const LlmcHeader header = {
        magic,      static_cast<int32_t>(version), config.context, config.V, config.L, config.NH, config.C,
        config.Vp()};
    AtomicFile file(path);
    file.write(header.data(), sizeof(header));
    for (const TensorId id : family.llmc_order(config)) {
        before_tensor();
        const std::vector<float> values = model.values(model.table()[id]);
        if (version == LlmcVersion::fp32) {
            file.write(values.data(), values.size() * sizeof(float));
        } else {
            std::vector<bfloat16> rounded(values.size());
            for (size_t i = 0; i < values.size(); i++) rounded[i] = bfloat16(values[i]);
            file.write(rounded.data(), rounded.size() * sizeof(bfloat16));
        }
    }
    file.commit();
}
