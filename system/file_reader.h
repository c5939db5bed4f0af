// file_reader.h: reads any part of a file of any size. It stays the file that was opened, even if another one
// gets its name or it is removed.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

class FileReader {
public:
    // UsageError, naming the file, if it does not exist or is not a regular file. AccessError if it
    // cannot be opened for another reason.
    explicit FileReader(const std::string& path);
    FileReader(FileReader&& other) noexcept
        : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), size_(other.size_) {}
    FileReader& operator=(FileReader&& other) noexcept {
        std::swap(path_, other.path_);
        std::swap(file_, other.file_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~FileReader();

    const std::string& path() const { return path_; }
    size_t size() const { return size_; }  // in bytes, when the file was opened

    // Reads `bytes` bytes from `offset` on. ReadError, with the file, the offset and the reason, if they
    // cannot be read (a failing disk, or a file truncated by another process).
    void read(void* to, size_t offset, size_t bytes) const;
    // The bytes from `begin` to `end`, or to the end of the file if that comes first.
    std::string text(size_t begin = 0, size_t end = SIZE_MAX) const;
    // Passes the same bytes to take, 1 MiB at a time.
    void read_pieces(size_t begin, size_t end, const std::function<void(std::string_view)>& take) const;

private:
    std::string path_;
    int file_ = -1;
    size_t size_ = 0;
};

// Fills `to` with elements that the file has as Stored from byte `begin` on, converted to Element.
template <class Stored, class Element, class Convert>
void read_elements(const FileReader& file, size_t begin, std::span<Element> to, const Convert& convert) {
    if constexpr (std::is_same_v<Stored, Element>) return file.read(to.data(), begin, to.size_bytes());
    std::vector<Stored> piece(std::min(to.size(), size_t{1} << 16));
    for (size_t i = 0; i < to.size(); i += piece.size()) {
        piece.resize(std::min(piece.size(), to.size() - i));
        file.read(piece.data(), begin + i * sizeof(Stored), piece.size() * sizeof(Stored));
        std::ranges::transform(piece, to.begin() + static_cast<std::ptrdiff_t>(i), convert);
    }
}
