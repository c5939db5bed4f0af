// mapped_file.h: a file's bytes as read-only memory, whatever its size; pages are read when they are touched.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

class MappedFile {
public:
    // UsageError, naming the file, if it cannot be opened, is not a regular file or cannot be mapped.
    explicit MappedFile(const std::string& path);
    MappedFile(MappedFile&& other) noexcept : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    const std::string& path() const { return path_; }
    std::string_view bytes() const { return bytes_; }

private:
    std::string path_;
    std::string_view bytes_;
};
