#include "system/printable.h"

#include <fmt/core.h>

#include "system/utf8_stream.h"

std::string printable(std::string_view text, std::string_view kept) {
    const std::string valid = replace_invalid_utf8(text);
    std::string result;
    for (size_t i = 0; i < valid.size(); i++) {
        const unsigned char byte = valid[i], next = i + 1 < valid.size() ? valid[i + 1] : 0;
        const bool low = (byte < 0x20 || byte == 0x7F) && kept.find(valid[i]) == kept.npos;
        const bool high = byte == 0xC2 && next < 0xA0;  // U+0080 to U+009F
        if (low) result += fmt::format("\\x{:02x}", byte);
        else if (high) result += fmt::format("\\x{:02x}", next), i++;
        else result += valid[i];
    }
    return result;
}

std::string in_shell(std::string_view name) {
    std::string word = "'";
    for (const char c : name) {
        if (c == '\'') word += "'\\''";
        else word += c;
    }
    return word + "'";
}

std::string readable(double bytes) {
    if (bytes >= 0x1p60) return "over 1 EiB";
    if (bytes >= 10 * 0x1p40) return fmt::format("{:.1f} TiB", bytes / 0x1p40);
    if (bytes >= 10 * 0x1p30) return fmt::format("{:.1f} GiB", bytes / 0x1p30);
    return fmt::format("{:.1f} MiB", bytes / 0x1p20);
}
