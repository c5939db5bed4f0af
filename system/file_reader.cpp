#include "system/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "system/file_access.h"

FileReader::FileReader(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe must not wait for its writer, since a pipe is an error anyway.
    file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    CHECK(file_ >= 0 || (errno != ENOENT && errno != ENOTDIR), "{}: cannot be opened: {}", path,
          std::strerror(errno));
    if (file_ < 0)
        throw AccessError(fmt::format("{}: cannot be opened: {}{}", path, std::strerror(errno),
                                      errno == EMFILE ? "; every shard stays open; see ulimit -Hn" : ""));
    struct stat status;
    const int failed = fstat(file_, &status) == 0 ? 0 : errno;
    if (failed == 0 && S_ISREG(status.st_mode)) {
        size_ = static_cast<size_t>(status.st_size);
        return;
    }
    close(file_);
    if (failed != 0)
        throw AccessError(fmt::format("{}: cannot be accessed: {}", path, std::strerror(failed)));
    throw UsageError(fmt::format("{}: is not a regular file", path));
}

FileReader::~FileReader() {
    if (file_ >= 0) close(file_);
}

void FileReader::read(void* to, size_t offset, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
        const ssize_t got =
            pread(file_, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
        if (got > 0) done += static_cast<size_t>(got);
        else if (got == 0 || errno != EINTR)
            throw ReadError(fmt::format("{}: cannot be read at byte {}: {}", path_, offset + done,
                                        got == 0 ? "the file has become shorter" : std::strerror(errno)));
    }
}

std::string FileReader::text(size_t begin, size_t end) const {
    end = std::min(end, size_);
    std::string text(end - std::min(begin, end), '\0');
    read(text.data(), begin, text.size());
    return text;
}

void FileReader::read_pieces(size_t begin, size_t end,
                             const std::function<void(std::string_view)>& take) const {
    constexpr size_t piece_bytes = size_t{1} << 20;  // a multiple of the size of every number
    for (end = std::min(end, size_); begin < end; begin += piece_bytes)
        take(text(begin, std::min(end, begin + piece_bytes)));
}
