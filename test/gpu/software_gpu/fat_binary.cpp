#include "fat_binary.h"

#include <lz4.h>
#include <zstd.h>

#include <cstring>

#include "software_gpu.h"

namespace software_gpu {
namespace {

struct Wrapper {
    uint32_t magic, version;
    const std::byte* data;
};
struct Header {
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t content_bytes;
};
struct Entry {
    uint16_t kind, version;
    uint32_t bytes;          // of this header
    uint64_t payload_bytes;  // padded
    uint32_t packed_bytes;   // without padding; 0: not compressed
    uint32_t options_offset;
    uint16_t minor, major;
    uint32_t architecture;
    uint32_t name_offset, name_bytes;
    uint64_t flags;
    uint64_t reserved, unpacked_bytes;
};
static_assert(sizeof(Entry) == 64);
constexpr uint32_t wrapper_magic = 0x466243b1, header_magic = 0xba55ed50;
constexpr uint16_t ptx_kind = 1;
constexpr uint64_t lz4_flag = 0x2000, zstd_flag = 0x8000;

template <class T>
T read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

Fault damaged(const std::string& what) { return Fault("a fat binary cannot be read: " + what); }

std::string unpack(const Entry& entry, const char* payload) {
    if (!(entry.flags & (lz4_flag | zstd_flag)))
        return std::string(payload, strnlen(payload, entry.payload_bytes));
    if (entry.packed_bytes > entry.payload_bytes)
        throw damaged("its compressed PTX is longer than its entry");
    if (entry.unpacked_bytes > (uint64_t{1} << 30)) throw damaged("it declares more than 1 GiB of PTX");
    std::string text(entry.unpacked_bytes, '\0');
    if (entry.flags & zstd_flag) {
        const size_t bytes = ZSTD_decompress(text.data(), text.size(), payload, entry.packed_bytes);
        if (ZSTD_isError(bytes)) throw damaged(std::string("zstd: ") + ZSTD_getErrorName(bytes));
        if (bytes != text.size()) throw damaged("its PTX is shorter than declared");
    } else {
        const int bytes = LZ4_decompress_safe(payload, text.data(), static_cast<int>(entry.packed_bytes),
                                              static_cast<int>(text.size()));
        if (bytes < 0 || static_cast<size_t>(bytes) != text.size()) throw damaged("LZ4 data are invalid");
    }
    return text.substr(0, text.find('\0'));
}

}  // namespace

std::vector<PtxText> ptx_texts(const void* wrapper) {
    const auto [magic, version, data] = read<Wrapper>(static_cast<const std::byte*>(wrapper));
    if (magic != wrapper_magic) throw damaged("the wrapper's magic number is another one");
    const auto header = read<Header>(data);
    if (header.magic != header_magic) throw damaged("its magic number is another one");
    std::vector<PtxText> texts;
    const std::byte* at = data + header.bytes;
    const std::byte* const end = at + header.content_bytes;
    while (at < end) {
        if (static_cast<size_t>(end - at) < sizeof(Entry)) throw damaged("an entry is cut off");
        const auto entry = read<Entry>(at);
        const auto left = static_cast<uint64_t>(end - at);
        if (entry.bytes < sizeof(Entry) || entry.bytes > left || entry.payload_bytes > left - entry.bytes)
            throw damaged("an entry is cut off");
        if (entry.kind == ptx_kind) {
            std::string text = unpack(entry, reinterpret_cast<const char*>(at + entry.bytes));
            if (text.find(".version") == std::string::npos)
                throw damaged("an entry marked as PTX is none; is it compressed in a new way?");
            texts.push_back({entry.architecture, std::move(text)});
        }
        at += entry.bytes + entry.payload_bytes;
    }
    return texts;
}

}  // namespace software_gpu
