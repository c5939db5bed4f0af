#include "system/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "system/file_access.h"
#include "system/read_fault.h"
#include "system/sanitizer.h"

// The rest of the mapping's last page. It is poisoned, so that AddressSanitizer detects reads past the
// end of the file.
static std::pair<const char*, size_t> behind(std::string_view bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return {bytes.data() + bytes.size(), (page - bytes.size() % page) % page};
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a pipe must not wait for its writer, since a pipe is an error anyway.
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    CHECK(file >= 0 || (errno != ENOENT && errno != ENOTDIR), "{}: cannot be opened: {}", path,
          std::strerror(errno));
    if (file < 0) throw AccessError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
    struct stat status;
    const bool known = fstat(file, &status) == 0, regular = known && S_ISREG(status.st_mode);
    const int status_error = errno;
    const size_t size = regular ? static_cast<size_t>(status.st_size) : 0;
    // An empty file cannot be mapped, and becomes an empty view.
    void* memory = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : nullptr;
    const int map_error = errno;
    close(file);
    if (!known)
        throw AccessError(fmt::format("{}: cannot be accessed: {}", path, std::strerror(status_error)));
    CHECK(regular, "{}: is not a regular file", path);
    if (memory == MAP_FAILED)
        throw AccessError(
            fmt::format("{}: its {} bytes cannot be mapped: {}", path, size, std::strerror(map_error)));
    bytes_ = {static_cast<const char*>(memory), size};
    if (size > 0) know_mapping(path, bytes_);
    const auto [tail, tail_bytes] = behind(bytes_);
    asan_poison(tail, tail_bytes);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

MappedFile::~MappedFile() {
    if (bytes_.empty()) return;
    forget_mapping(bytes_);
    const auto [tail, tail_bytes] = behind(bytes_);
    asan_unpoison(tail, tail_bytes);
    munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::copy(void* to, size_t offset, size_t bytes) const {
    if (bytes == 0) return;
    const char* const at = copy_from_mapping(to, bytes_.data() + offset, bytes);
    if (at == nullptr) return;
    const size_t unreadable = static_cast<size_t>(at - bytes_.data());
    throw ReadError(fmt::format("{}: cannot be read at byte {}: {}", path_, unreadable,
                                reason_of_read_fault(path_.c_str(), unreadable)));
}

std::string MappedFile::text() const {
    std::string text(bytes_.size(), '\0');
    copy(text.data(), 0, text.size());
    return text;
}
