// fuzz.h: shared by the fuzz targets. A target feeds arbitrary bytes to one reader. The reader may accept
// them or reject them with Error (UsageError); everything else is a finding: another exception, a report
// of a sanitizer, more than 2 GiB of memory or more than 5 seconds. scripts/fuzz.sh runs the targets, and
// dev/fuzz_corpus.py writes their seeds.
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

// A file in memory, for readers that take a path.
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

// Corrects the header length of a safetensors file: mutations break it first, and a reader with a wrong
// length sees nothing behind it.
inline std::string with_header_length(std::string_view bytes) {
    std::string changed(bytes);
    if (bytes.size() < sizeof(uint64_t)) return changed;
    // The header is assumed to end with the last brace; data of small numbers contains none.
    const size_t brace = bytes.rfind("}}");
    const uint64_t header_bytes = brace != bytes.npos && brace >= sizeof(uint64_t)
                                      ? brace + 2 - sizeof(uint64_t)
                                      : bytes.size() - sizeof(uint64_t);
    std::memcpy(changed.data(), &header_bytes, sizeof(header_bytes));
    return changed;
}

// Splits an input that stands for several files, which are separated by lines "====". Returns the
// requested number of parts; missing ones are empty.
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

// Calls the reader; a rejection is as good as a success. Any exception but Error leaves the target and is
// reported by libFuzzer.
template <class Read>
void read_or_refuse(Read read) {
    try {
        read();
    } catch (const Error& refusal) {
        if (refusal.what()[0] == '\0') std::abort();  // a rejection gives its reason
    }
}

// For conditions that must hold for every input.
inline void require(bool condition) {
    if (!condition) std::abort();
}

// Reads every byte, so that the sanitizer checks it.
inline void touch(std::string_view bytes) {
    unsigned sum = 0;
    for (const char byte : bytes) sum += static_cast<unsigned char>(byte);
    [[maybe_unused]] static volatile unsigned sink;
    sink = sum;
}
