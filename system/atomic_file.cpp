#include "system/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "system/error.h"

namespace fs = std::filesystem;

static constexpr size_t buffer_bytes = size_t{1} << 20;

void write_atomically(const std::string& path, std::string_view bytes) {
    AtomicFile file(path);
    file.write(bytes.data(), bytes.size());
    file.commit();
}

// The name is random, so that processes on several machines that share the folder do not collide.
std::string temporary_beside(const std::string& path) {
    return fmt::format("{}.tmp-{:08x}", path, std::random_device()());
}

std::optional<std::string> final_name_of(const std::string& name) {
    const std::string final_name = name.substr(0, name.rfind(".tmp-"));
    const std::string random = name.substr(std::min(name.size(), final_name.size() + 5));
    if (random.size() != 8 || random.find_first_not_of("0123456789abcdef") != random.npos)
        return std::nullopt;
    return final_name;
}

bool is_temporary(const std::string& name) { return final_name_of(name).has_value(); }

static std::vector<std::string> leftovers(const std::string& folder, const std::string& prefix,
                                          const std::string& suffix) {
    std::error_code ignored;
    std::vector<std::string> found;
    for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end;
         entry.increment(ignored)) {
        const std::optional<std::string> name = final_name_of(entry->path().filename());
        if (name && name->starts_with(prefix) && name->ends_with(suffix)) found.push_back(entry->path());
    }
    return found;
}

void remove_leftovers(const std::string& folder, const std::string& prefix, const std::string& suffix,
                      std::chrono::hours unchanged) {
    std::error_code ignored;
    for (const fs::path path : leftovers(folder, prefix, suffix)) {
        const fs::file_time_type written = fs::last_write_time(path, ignored);
        if (!ignored && fs::file_time_type::clock::now() - written > unchanged) fs::remove_all(path, ignored);
    }
}

void remove_leftovers(const std::string& folder, const std::string& prefix, const std::string& suffix) {
    std::error_code ignored;
    for (const std::string& path : leftovers(folder, prefix, suffix)) fs::remove_all(path, ignored);
}

// Opens and syncs; returns the error number, 0 for success.
static int sync(const std::string& path, int flags) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    if (file < 0) return errno;
    const int error = fsync(file) == 0 ? 0 : errno;
    return close(file) == 0 || error != 0 ? error : errno;
}

static void check_synced(const std::string& path, int error) {
    if (error != 0) throw Error(fmt::format("{}: cannot be synced: {}", path, std::strerror(error)));
}

void sync_file(const std::string& path) { check_synced(path, sync(path, 0)); }

void sync_folder(const std::string& path) {
    const std::string folder = path.empty() ? "." : path;
    const int error = sync(folder, O_DIRECTORY);
    // EACCES: the folder may be written to but not opened. The others: the file system cannot sync
    // folders.
    const bool tolerated = error == EACCES || error == EINVAL || error == EOPNOTSUPP || error == ENOSYS;
    check_synced(folder, tolerated ? 0 : error);
}

void make_folders(const std::string& folder, std::error_code& failure) {
    const fs::path path = (fs::absolute(folder) / "").parent_path(), parent = path.parent_path();
    if (!fs::exists(parent, failure) && !failure) make_folders(parent, failure);
    if (!failure && !fs::is_directory(path, failure)) fs::create_directory(path, failure);
    if (!failure) sync_folder(parent);
}

static bool is_standard_stream(const struct stat& file) {
    return std::ranges::any_of(std::array{STDOUT_FILENO, STDERR_FILENO}, [&](int stream) {
        struct stat other;
        return fstat(stream, &other) == 0 && other.st_dev == file.st_dev && other.st_ino == file.st_ino;
    });
}

// The file that a chain of links leads to, whether it is there or not. The chain must have an end.
static fs::path without_links(fs::path path) {
    std::error_code failed;
    while (fs::is_symlink(path, failed)) path = path.parent_path() / fs::read_symlink(path);
    return path;
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
    struct stat there;
    if (stat(path.c_str(), &there) == 0) {
        CHECK(S_ISREG(there.st_mode) || S_ISDIR(there.st_mode),
              "{}: is not a regular file but a device, FIFO or socket; expected a file to write", path);
        CHECK(!is_standard_stream(there),
              "{}: is this program's standard output or error; expected another file", path);
    } else if (errno != ENOENT) {
        fail("cannot be created");
    }
    target_ = without_links(path);
    buffer_.reserve(buffer_bytes);
    do {
        temporary_ = temporary_beside(target_);
        file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (file_ < 0 && errno == EEXIST);
    if (file_ < 0) {
        temporary_.clear();
        fail("cannot be created");
    }
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::exchange(other.file_, -1)),
      buffer_(std::move(other.buffer_)),
      flushed_(other.flushed_) {}

AtomicFile::~AtomicFile() {
    if (file_ >= 0) ::close(file_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
        const size_t part = std::min(bytes, buffer_bytes - buffer_.size());
        buffer_.insert(buffer_.end(), next, next + part);
        next += part;
        bytes -= part;
        if (buffer_.size() == buffer_bytes) flush();
    }
}

void AtomicFile::write_at(size_t offset, const void* data, size_t bytes) {
    flush();
    write_all(data, bytes, offset);
}

void AtomicFile::close() {
    if (file_ < 0) return;
    flush();
    if (fsync(file_) != 0) fail("cannot be written");
    // Network file systems may report a full disk only here.
    if (::close(std::exchange(file_, -1)) != 0) fail("cannot be written");
    buffer_ = {};
}

void AtomicFile::commit() {
    close();
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot be given its name");
    temporary_.clear();
    sync_folder(fs::path(target_).parent_path());  // the name is on the disk once the folder is
}

void AtomicFile::flush() {
    write_all(buffer_.data(), buffer_.size(), flushed_);
    flushed_ += buffer_.size();
    buffer_.clear();
}

void AtomicFile::write_all(const void* data, size_t bytes, size_t offset) {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t written = pwrite(file_, next, bytes, static_cast<off_t>(offset));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail("cannot be written");
        next += written;
        offset += static_cast<size_t>(written);
        bytes -= static_cast<size_t>(written);
    }
}

void AtomicFile::fail(const char* what) const {
    throw Error(fmt::format("{}: {}: {}", path_, what, std::strerror(errno)));
}
