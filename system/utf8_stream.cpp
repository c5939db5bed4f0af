#include "system/utf8_stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

// The character at the front: `length` of its `wanted` bytes are present. length 0: the first byte starts
// no character.
struct Front {
    size_t length, wanted;
    bool complete() const { return length > 0 && length == wanted; }
};

Front front_of(std::string_view bytes) {
    if (bytes.empty()) return {0, 0};
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {1, 1};
    // a continuation byte, or the lead of an overlong form or of a code point above U+10FFFF
    if (lead < 0xC2 || lead > 0xF4) return {0, 0};
    const size_t wanted = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    size_t length = 1;
    for (; length < std::min(wanted, bytes.size()); length++) {
        // The second byte also excludes overlong forms (E0, F0), surrogates (ED) and code points above
        // U+10FFFF (F4).
        const bool second = length == 1;
        const int low = second && lead == 0xE0 ? 0xA0 : second && lead == 0xF0 ? 0x90 : 0x80;
        const int high = second && lead == 0xED ? 0x9F : second && lead == 0xF4 ? 0x8F : 0xBF;
        if (byte(length) < low || byte(length) > high) break;
    }
    return {length, wanted};
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
    std::string ready = pending_.append(bytes);
    pending_.clear();
    // A lead byte is never part of another character, so only the last lead byte matters. If its
    // character is incomplete, it is among the last three bytes.
    for (size_t back = 1; back <= std::min<size_t>(3, ready.size()); back++) {
        const Front front = front_of(std::string_view(ready).substr(ready.size() - back));
        if (front.length == 0) continue;  // a continuation byte
        if (front.length == back && !front.complete()) {
            pending_ = ready.substr(ready.size() - back);
            ready.resize(ready.size() - back);
        }
        break;
    }
    return ready;
}

std::string replace_invalid_utf8(std::string_view bytes) {
    std::string valid;
    while (!bytes.empty()) {
        const Front front = front_of(bytes);
        if (front.complete()) valid += bytes.substr(0, front.length);
        else valid += "\uFFFD";
        bytes.remove_prefix(std::max<size_t>(front.length, 1));
    }
    return valid;
}

size_t first_invalid_utf8(std::string_view bytes) {
    for (size_t at = 0; at < bytes.size();) {
        // Most text is ASCII: eight bytes at a time have no high bit.
        uint64_t eight;
        for (; at + sizeof(eight) <= bytes.size(); at += sizeof(eight)) {
            std::memcpy(&eight, bytes.data() + at, sizeof(eight));
            if ((eight & 0x8080808080808080) != 0) break;
        }
        if (at == bytes.size()) break;
        const Front front = front_of(bytes.substr(at, 4));
        if (!front.complete()) return at;
        at += front.length;
    }
    return bytes.size();
}
