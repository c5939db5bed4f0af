#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "system/error.h"
#include "system/unicode_nfc.h"
#include "system/utf8_stream.h"

bool can_normalize() { return true; }

// text is UTF-8 and not empty.
static void append_nfc(std::string& normalized, std::string_view text) {
    utf8proc_uint8_t* result = nullptr;
    const utf8proc_ssize_t bytes = utf8proc_map(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
        &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
    CHECK(bytes >= 0, "a text cannot be normalized: {}", utf8proc_errmsg(bytes));
    normalized.append(reinterpret_cast<const char*>(result), static_cast<size_t>(bytes));
}

// utf8proc 2.8 drops U+11A7 behind a Hangul syllable. No character combines with it.
static constexpr std::string_view lost = "\xE1\x86\xA7";

std::string normalized_nfc(std::string_view text) {
    std::string normalized;
    while (!text.empty()) {
        const size_t valid = std::min(first_invalid_utf8(text), text.find(lost));
        const std::string_view before = text.substr(0, valid);
        text.remove_prefix(before.size());
        if (!before.empty()) append_nfc(normalized, before);
        const std::string_view kept = text.substr(0, text.starts_with(lost) ? lost.size() : 1);
        normalized += kept;
        text.remove_prefix(kept.size());
    }
    return normalized;
}
