// fuzz.h: what the fuzz targets share. A target feeds bytes that somebody else chose to one reader; the
//   reader may take them or refuse them with Error (UsageError), and nothing else: another exception, a
//   report of a sanitizer, more than 2 GiB of memory or more than 5 seconds is a finding. scripts/fuzz.sh
//   runs the targets, dev/fuzz_corpus.py writes what they start from.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "system/error.h"

inline std::string_view as_text(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

// A file that lies in memory, for readers that take a path.
class MemoryFile {
public:
    explicit MemoryFile(std::string_view bytes) : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
        for (size_t done = 0; done < bytes.size();) {
            const ssize_t written = write(file_, bytes.data() + done, bytes.size() - done);
            if (written <= 0) std::abort();
            done += static_cast<size_t>(written);
        }
    }
    MemoryFile(const MemoryFile&) = delete;
    ~MemoryFile() { close(file_); }
    std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

private:
    int file_;
};

// A folder of files in memory, for readers that take one; its path is the same for every input of a process.
class FuzzFolder {
public:
    explicit FuzzFolder(const std::string& name = "data")
        : path_("/dev/shm/flatgpt-fuzz-" + std::to_string(getpid()) + "-" + name) {
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }
    FuzzFolder(const FuzzFolder&) = delete;
    ~FuzzFolder() { std::filesystem::remove_all(path_); }
    const std::string& path() const { return path_; }
    // Empties the folder, for the next input.
    void clear() const {
        for (const auto& entry : std::filesystem::directory_iterator(path_))
            std::filesystem::remove_all(entry.path());
    }
    void write(const std::string& name, std::string_view bytes) const {
        std::ofstream(path_ + "/" + name, std::ios::binary)
            .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }

private:
    std::string path_;
};

// A safetensors file whose header length is right again: it is the first thing that a mutation breaks, and
// nothing behind it is seen then.
inline std::string with_header_length(std::string_view bytes) {
    std::string changed(bytes);
    if (bytes.size() < sizeof(uint64_t)) return changed;
    // The header ends with the last brace that data of small numbers does not hold, as far as one can tell.
    const size_t brace = bytes.rfind("}}");
    const uint64_t header_bytes = brace != bytes.npos && brace >= sizeof(uint64_t)
                                      ? brace + 2 - sizeof(uint64_t)
                                      : bytes.size() - sizeof(uint64_t);
    std::memcpy(changed.data(), &header_bytes, sizeof(header_bytes));
    return changed;
}

// An input that stands for several files: they follow each other, with a line "====" between them. There are
// as many parts as asked for;
// what is not there is empty.
inline std::vector<std::string_view> parts_of(std::string_view input, size_t count) {
    static constexpr std::string_view separator = "\n====\n";
    std::vector<std::string_view> parts;
    while (parts.size() + 1 < count) {
        const size_t end = input.find(separator);
        parts.push_back(input.substr(0, end));
        input = end == input.npos ? std::string_view{} : input.substr(end + separator.size());
    }
    parts.push_back(input);
    return parts;
}

// Reads; a refusal is as good as a success. Anything but Error leaves the target, which libFuzzer reports.
template <class Read>
void read_or_refuse(Read read) {
    try {
        read();
    } catch (const Error& refusal) {
        if (refusal.what()[0] == '\0') std::abort();  // a refusal says why
    }
}

// For what must hold whatever the input.
inline void require(bool condition) {
    if (!condition) std::abort();
}

// Looks at every byte, so that the sanitizer does too.
inline void touch(std::string_view bytes) {
    unsigned sum = 0;
    for (const char byte : bytes) sum += static_cast<unsigned char>(byte);
    [[maybe_unused]] static volatile unsigned sink;
    sink = sum;
}
