#include "system/text_encoding.h"

#include <algorithm>
#include <array>

#include "system/error.h"
#include "system/printable.h"

static constexpr size_t looked_at = 4096;

// iconv's name of the encoding; "" if the text seems to be neither UTF-16 nor UTF-32.
static std::string wide_encoding(std::string_view text) {
    using namespace std::string_view_literals;
    // The mark of UTF-32LE begins with that of UTF-16LE.
    if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
    if (text.starts_with("\xFF\xFE"sv) || text.starts_with("\xFE\xFF"sv)) return "UTF-16";
    const std::string_view start = text.substr(0, looked_at);
    std::array<size_t, 4> zeros = {};  // zero bytes at each place of four
    for (size_t i = 0; i < start.size(); i++) zeros[i % 4] += start[i] == '\0';
    // Nearly all zero bytes of such a text lie in one half of its units, since few letters have a code that
    // ends in zero. Letters outside Latin-1 contain no zero byte, but the spaces between them do.
    const auto mostly = [&](size_t these, size_t others) {
        return these >= std::max<size_t>(2, start.size() / (others > 0 ? 4 : 32)) && others <= these / 10;
    };
    const size_t high = start.size() / 4 * 2;  // bytes of UTF-32 that are always zero, but for a rare emoji
    if (zeros[2] + zeros[3] >= high - high / 10 && mostly(zeros[3], zeros[0])) return "UTF-32LE";
    if (zeros[0] + zeros[1] >= high - high / 10 && mostly(zeros[0], zeros[3])) return "UTF-32BE";
    if (mostly(zeros[1] + zeros[3], zeros[0] + zeros[2])) return "UTF-16LE";
    if (mostly(zeros[0] + zeros[2], zeros[1] + zeros[3])) return "UTF-16BE";
    return "";
}

void check_encoding(const std::string& path, std::string_view text) {
    const std::string encoding = wide_encoding(text);
    CHECK(encoding.empty(),
          "{}: is {} text; expected UTF-8; convert it with: iconv -f {} -t UTF-8 {} > utf8.txt", path,
          encoding, encoding, in_shell(path));
}

void check_fetched(const std::string& path, std::string_view bytes) {
    CHECK(!bytes.starts_with("version https://git-lfs.github.com/spec/"),
          "{}: is git LFS's pointer to the file; expected the file itself, which this fetches: git lfs pull",
          path);
}
