// mapped_file.h: a file's bytes as read-only memory, whatever its size; pages are read when they are touched.
//   A page that cannot be read (a failing disk, or a file that others have cut short) is an error of copy()
//   and text(). Where bytes() are read directly, the program ends with one line that names the file and the
//   offset.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

class MappedFile {
public:
    // UsageError, naming the file, if there is none, or no regular one; AccessError if it cannot be opened or
    // mapped for another reason.
    explicit MappedFile(const std::string& path);
    MappedFile(MappedFile&& other) noexcept
        : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    const std::string& path() const { return path_; }
    std::string_view bytes() const { return bytes_; }

    // Copies some of the bytes, or all of them. ReadError, naming the file, the offset and the reason, if
    // they cannot be read.
    void copy(void* to, size_t offset, size_t bytes) const;
    std::string text() const;

private:
    std::string path_;
    std::string_view bytes_;
};
