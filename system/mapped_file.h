// mapped_file.h: a file of any size as read-only memory; pages are read from disk when first touched.
//   If a page cannot be read (a failing disk, or a file truncated by another process), copy() and text()
//   throw. Direct reads of bytes() end the program with one line that names the file and the offset.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

class MappedFile {
public:
    // UsageError, naming the file, if it does not exist or is not a regular file. AccessError if it
    // cannot be opened or mapped for another reason.
    explicit MappedFile(const std::string& path);
    MappedFile(MappedFile&& other) noexcept
        : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    const std::string& path() const { return path_; }
    std::string_view bytes() const { return bytes_; }

    // Copies `bytes` bytes from `offset`, or all of them. ReadError, with the file, the offset and the
    // reason, if they cannot be read.
    void copy(void* to, size_t offset, size_t bytes) const;
    std::string text() const;

private:
    std::string path_;
    std::string_view bytes_;
};
