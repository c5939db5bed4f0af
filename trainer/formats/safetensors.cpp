#include "trainer/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "kernels/simt/bfloat16.h"
#include "system/atomic_file.h"
#include "system/error.h"
#include "system/json_text.h"
#include "system/text_encoding.h"

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian and so are we");

static const size_t length_bytes = sizeof(uint64_t);
static const size_t max_header_bytes = 100'000'000;  // the limit of Hugging Face's own reader
static const char metadata_key[] = "__metadata__";

// Bytes per element; 0 for a dtype that the format does not have.
static size_t element_bytes(const std::string& dtype) {
    static const std::map<std::string, size_t> sizes = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
        {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
        {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
    const auto found = sizes.find(dtype);
    return found == sizes.end() ? 0 : found->second;
}

// Multiplies into `product`; false if it overflows.
static bool multiply(size_t& product, size_t factor) {
    return !__builtin_mul_overflow(product, factor, &product);
}

// Shape times element size, or UsageError.
static size_t tensor_bytes(const std::string& path, const std::string& name, const std::string& dtype,
                           const std::vector<size_t>& shape) {
    size_t bytes = element_bytes(dtype);
    CHECK(bytes > 0, "{}: tensor {} has dtype {}, which safetensors does not have", path, shown(name),
          shown(dtype));
    bool fits = true;
    for (const size_t size : shape) fits = multiply(bytes, size) && fits;
    CHECK(fits, "{}: tensor {} has a shape of more than 2^64 bytes", path, shown(name));
    return bytes;
}

// NOLINTNEXTLINE(clang-analyzer-core.DivideZero): the dtype was checked
size_t SafetensorsFile::Tensor::elements() const { return bytes / element_bytes(dtype); }

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    check_fetched(path, file_.text(0, 64));
    CHECK(file_.size() >= length_bytes, "{}: has {} bytes, too few for a safetensors file", path,
          file_.size());
    uint64_t header_bytes;
    file_.read(&header_bytes, 0, length_bytes);
    CHECK(header_bytes <= max_header_bytes && header_bytes <= file_.size() - length_bytes,
          "{}: is not a safetensors file, or cut short: its header would take {} of its {} bytes", path,
          header_bytes, file_.size());
    const size_t data_begin = length_bytes + header_bytes;
    read_header(file_.text(length_bytes, data_begin), data_begin);
}

// Parses the header as JSON. UsageError if an object has a key twice or if the nesting is deeper than the
// format needs.
static json parse_header(const std::string& path, std::string_view header) {
    CHECK(header.starts_with('{'), "{}: is not a safetensors file: its header does not begin with '{{'",
          path);
    std::vector<std::set<std::string>> keys;  // keys of the objects that are open, outermost first
    const auto refuse = [&](int depth, json::parse_event_t event, json& value) {
        CHECK(depth < 4, "{}: its header is nested too deeply for a safetensors file", path);
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        if (event == json::parse_event_t::object_end) keys.pop_back();
        if (event == json::parse_event_t::key) {
            const std::string& key = value.get_ref<const std::string&>();
            CHECK(keys.back().insert(key).second, "{}: its header has {} twice", path, shown(key));
        }
        return true;
    };
    try {
        return json::parse(header, refuse);
    } catch (const json::exception& error) {
        throw UsageError(fmt::format("{}: its header is not JSON: {}", path, shown(error.what())));
    }
}

// The list of sizes under `key`, all of them unsigned integers.
static std::vector<size_t> sizes(const std::string& path, const std::string& name, const json& entry,
                                 const char* key) {
    const auto list = entry.find(key);
    const auto is_size = [](const json& value) { return value.is_number_unsigned(); };
    CHECK(list != entry.end() && list->is_array() && std::all_of(list->begin(), list->end(), is_size),
          "{}: tensor {} needs a list of whole numbers as {}", path, shown(name), key);
    return list->get<std::vector<size_t>>();
}

void SafetensorsFile::read_header(std::string_view header, size_t data_begin) {
    const size_t data_bytes = file_.size() - data_begin;
    struct Range {
        size_t begin, end;
        const std::string* name;
    };
    std::vector<Range> ranges;
    const json root = parse_header(path(), header);
    for (const auto& [name, entry] : root.items()) {
        CHECK(entry.is_object(), "{}: {} in its header is not an object", path(), shown(name));
        if (name == metadata_key) {
            for (const auto& [key, value] : entry.items()) {
                CHECK(value.is_string(), "{}: {} in its metadata is not a text", path(), shown(key));
                metadata_[key] = value.get<std::string>();
            }
            continue;
        }
        const auto dtype = entry.find("dtype");
        CHECK(dtype != entry.end() && dtype->is_string(), "{}: tensor {} has no dtype", path(), shown(name));
        Tensor tensor{dtype->get<std::string>(), sizes(path(), name, entry, "shape"), 0, 0};
        tensor.bytes = tensor_bytes(path(), name, tensor.dtype, tensor.shape);
        const std::vector<size_t> offsets = sizes(path(), name, entry, "data_offsets");
        CHECK(offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= data_bytes,
              "{}: tensor {} lies outside the file's {} bytes of data: cut short, or its data_offsets are "
              "wrong",
              path(), shown(name), data_bytes);
        CHECK(offsets[1] - offsets[0] == tensor.bytes,
              "{}: tensor {} has {} bytes of data, but its dtype and shape need {}", path(), shown(name),
              offsets[1] - offsets[0], tensor.bytes);
        tensor.begin = data_begin + offsets[0];
        ranges.push_back({offsets[0], offsets[1], &tensors_.emplace(name, std::move(tensor)).first->first});
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    size_t covered = 0;
    for (const Range& range : ranges) {
        CHECK(range.begin == covered, "{}: tensor {} begins at byte {} of the data, {} {}", path(),
              shown(*range.name), range.begin,
              range.begin < covered ? "inside another tensor that ends at" : "after a gap that begins at",
              covered);
        covered = range.end;
    }
    CHECK(covered == data_bytes, "{}: {} bytes of data belong to no tensor", path(), data_bytes - covered);
}

const SafetensorsFile::Tensor& SafetensorsFile::at(const std::string& name) const {
    const auto found = tensors_.find(name);
    CHECK(found != tensors_.end(), "{}: has no tensor {}", path(), shown(name));
    return found->second;
}

static float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu,
                   mantissa = half & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    const uint32_t wide_exponent = exponent == 0x1fu ? 0xffu : exponent + 127 - 15;
    return std::bit_cast<float>(sign | wide_exponent << 23 | mantissa << 13);
}

std::string SafetensorsFile::bytes(const std::string& name) const {
    const Tensor& tensor = at(name);
    return file_.text(tensor.begin, tensor.begin + tensor.bytes);
}

std::vector<float> SafetensorsFile::floats(const std::string& name) const {
    std::vector<float> elements(at(name).elements());
    floats(name, elements);
    return elements;
}

void SafetensorsFile::floats(const std::string& name, std::span<float> to, size_t first) const {
    const Tensor& tensor = at(name);
    CHECK(to.size() <= tensor.elements() && first <= tensor.elements() - to.size(),
          "{}: tensor {} has {} elements; {} from element {} on were wanted", path(), shown(name),
          tensor.elements(), to.size(), first);
    const size_t begin = tensor.begin + first * element_bytes(tensor.dtype);
    const auto cast = [](auto value) { return static_cast<float>(value); };
    if (tensor.dtype == "F64") return read_elements<double>(file_, begin, to, cast);
    if (tensor.dtype == "F32") return read_elements<float>(file_, begin, to, cast);
    if (tensor.dtype == "BF16") return read_elements<bfloat16>(file_, begin, to, cast);
    if (tensor.dtype == "F16") return read_elements<uint16_t>(file_, begin, to, half_to_float);
    throw UsageError(fmt::format("{}: tensor {} is {}, where F32, BF16, F16 or F64 was expected", path(),
                                 shown(name), tensor.dtype));
}

std::vector<int> SafetensorsFile::ints(const std::string& name) const {
    const Tensor& tensor = at(name);
    std::vector<int> elements(tensor.elements());
    const auto read = [&]<class Stored>(Stored) {
        read_elements<Stored>(file_, tensor.begin, std::span(elements), [&](Stored value) {
            CHECK(std::in_range<int>(value), "{}: tensor {} has the element {}, which is no 32-bit integer",
                  path(), shown(name), value);
            return static_cast<int>(value);
        });
        return elements;
    };
    if (tensor.dtype == "I64") return read(int64_t());
    if (tensor.dtype == "U64") return read(uint64_t());
    if (tensor.dtype == "I32") return read(int32_t());
    if (tensor.dtype == "U32") return read(uint32_t());
    if (tensor.dtype == "I16") return read(int16_t());
    if (tensor.dtype == "U16") return read(uint16_t());
    if (tensor.dtype == "I8") return read(int8_t());
    if (tensor.dtype == "U8") return read(uint8_t());
    throw UsageError(
        fmt::format("{}: tensor {} is {}, where integers were expected", path(), shown(name), tensor.dtype));
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
    write_safetensors(path, tensors, metadata, [&](size_t i) { return tensors[i].data; });
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<const void*(size_t)>& data_of) {
    std::vector<size_t> order(tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return element_bytes(tensors[a].dtype) > element_bytes(tensors[b].dtype);
    });
    json root = json::object();
    if (!metadata.empty()) root[metadata_key] = metadata;
    size_t offset = 0;
    for (const size_t i : order) {
        const NamedTensor& tensor = tensors[i];
        const size_t bytes = tensor_bytes(path, tensor.name, tensor.dtype, tensor.shape);
        CHECK(tensor.name != metadata_key && !root.contains(tensor.name), "{}: a second tensor is called {}",
              path, shown(tensor.name));
        root[tensor.name] = {
            {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
        offset += bytes;
    }
    std::string header = root.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');  // the data begins aligned
    const uint64_t header_bytes = header.size();
    AtomicFile file(path);
    file.write(&header_bytes, length_bytes);
    file.write(header.data(), header.size());
    for (const size_t i : order) {
        const void* data = data_of(i);
        file.write(data, tensor_bytes(path, tensors[i].name, tensors[i].dtype, tensors[i].shape));
    }
    file.commit();
}
