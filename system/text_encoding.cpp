#include "system/text_encoding.h"

#include <algorithm>
#include <array>

#include "system/error.h"

static constexpr size_t looked_at = 4096;

// iconv's name of the encoding; "" if the text seems to be neither UTF-16 nor UTF-32.
static std::string wide_encoding(std::string_view text) {
    using namespace std::string_view_literals;
    // The mark of UTF-32LE begins with that of UTF-16LE.
    if (text.starts_with("\xFF\xFE\0\0"sv) || text.starts_with("\0\0\xFE\xFF"sv)) return "UTF-32";
    if (text.starts_with("\xFF\xFE"sv) || text.starts_with("\xFE\xFF"sv)) return "UTF-16";
    const std::string_view start = text.substr(0, looked_at);
    std::array<size_t, 2> zeros = {};  // zero bytes at even and at odd places
    for (size_t i = 0; i < start.size(); i++) zeros[i % 2] += start[i] == '\0';
    // Letters outside Latin-1 contain no zero byte, but the spaces between them do.
    const size_t enough = std::max<size_t>(2, start.size() / 32);
    if (zeros[0] == 0 && zeros[1] >= enough) return "UTF-16LE";
    if (zeros[1] == 0 && zeros[0] >= enough) return "UTF-16BE";
    return "";
}

void check_encoding(const std::string& path, std::string_view text) {
    const std::string encoding = wide_encoding(text);
    CHECK(encoding.empty(),
          "{}: is {} text; expected UTF-8; convert it with: iconv -f {} -t UTF-8 '{}' > utf8.txt", path,
          encoding, encoding, path);
}

void check_fetched(const std::string& path, std::string_view bytes) {
    CHECK(!bytes.starts_with("version https://git-lfs.github.com/spec/"),
          "{}: is git LFS's pointer to the file; expected the file itself, which this fetches: git lfs pull",
          path);
}
