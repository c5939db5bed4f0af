// io_faults.cpp: a library for LD_PRELOAD that makes chosen system calls fail, as a failing disk would.
//   IO_FAULT_CALLS   the calls, separated by commas: open stat opendir readdir read page write fsync syncdir
//                    close rename mkdir unlink statvfs flock; each name is a family (read: read, pread).
//                    page: a file has one page of 4096 bytes that pread cannot read; it gives the bytes
//                    before it, as a disk does
//   IO_FAULT_PATH    a part of the file's path; unset: every file
//   IO_FAULT_ERRNO   the error's number; unset: EIO
//   IO_FAULT_FIRST   the first matching call that fails, from 1; unset: 1; 0: none fails
//   IO_FAULT_COUNT   how many calls in a row fail; unset: 1
//   IO_FAULT_PAGE    which page of the file "page" means, from 0; unset: the one in the middle
//   IO_FAULT_LOG     a file that gets a line "CALL PATH" for each call that fails; with IO_FAULT_FIRST 0,
//                    for each call that matches
// These are the calls that our programs and libstdc++ make. Calls that the C library makes by itself, such as
// fopen's, are not seen.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "preloaded_calls.h"

namespace {

const char* setting(const char* name, const char* standard) {
    const char* const text = std::getenv(name);
    return text != nullptr ? text : standard;
}

void log(const std::string& line) {
    const char* const path = setting("IO_FAULT_LOG", "");
    if (*path == '\0') return;
    const long file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    syscall(SYS_write, file, line.data(), line.size());
    syscall(SYS_close, file);
}

// True, and errno is set, if this call must fail.
bool fails(const std::string& call, const std::string& path) {
    const int error = errno;
    static std::atomic<long> calls = 0;
    static const std::string chosen = "," + std::string(setting("IO_FAULT_CALLS", "")) + ",";
    static const std::string part = setting("IO_FAULT_PATH", "");
    static const long first = std::atol(setting("IO_FAULT_FIRST", "1"));
    static const long count = std::atol(setting("IO_FAULT_COUNT", "1"));
    if (chosen.find("," + call + ",") == chosen.npos || path.find(part) == path.npos) return false;
    const long number = ++calls;
    const bool failing = first > 0 && number >= first && number - first < count;
    if (failing || first == 0) log(call + " " + path + "\n");
    errno = failing ? std::atoi(setting("IO_FAULT_ERRNO", std::to_string(EIO).c_str())) : error;
    return failing;
}

// The path that an ...at() call refers to, as it would be written from the working directory.
std::string path_at(int folder, const char* path) {
    if (folder == AT_FDCWD || *path == '/') return path;
    return *path == '\0' ? path_of(folder) : path_of(folder) + "/" + path;
}

bool is_folder(int file) {
    struct stat status;
    return syscall(SYS_fstat, file, &status) == 0 && S_ISDIR(status.st_mode);
}

// Calls the original, unless this call must fail.
template <class Function, class... Arguments>
auto pass(const char* family, const std::string& path, const char* name, Arguments... arguments) {
    using Result = decltype(original<Function>(name)(arguments...));
    if (!fails(family, path)) return original<Function>(name)(arguments...);
    if constexpr (std::is_pointer_v<Result>) return Result(nullptr);
    else return Result(-1);
}

// A read that ends before the page that cannot be read, or fails because it begins in it.
ssize_t read_at(const char* name, int file, void* to, size_t bytes, off_t at) {
    constexpr off_t page = 4096;
    struct stat status;
    if (syscall(SYS_fstat, file, &status) == 0 && status.st_size > 0) {
        const off_t pages = (status.st_size + page - 1) / page;
        const off_t bad =
            std::atol(setting("IO_FAULT_PAGE", std::to_string(pages / 2).c_str())) % pages * page;
        if (at < bad) bytes = std::min(bytes, static_cast<size_t>(bad - at));
        else if (at < bad + page && fails("page", path_of(file))) return -1;
    }
    return pass<decltype(pread)>("read", path_of(file), name, file, to, bytes, at);
}

}  // namespace

// The C library's names, and its words in their declarations.
extern "C" {

int open(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return pass<decltype(open)>("open", path, "open", path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return pass<decltype(openat)>("open", path_at(folder, path), "openat", folder, path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) {
    return pass<decltype(fopen)>("open", path, "fopen", path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
    return pass<decltype(fopen64)>("open", path, "fopen64", path, mode);
}

int stat(const char* path, struct stat* to) noexcept {
    return pass<decltype(stat)>("stat", path, "stat", path, to);
}
int lstat(const char* path, struct stat* to) noexcept {
    return pass<decltype(lstat)>("stat", path, "lstat", path, to);
}
int fstat(int file, struct stat* to) noexcept {
    return pass<decltype(fstat)>("stat", path_of(file), "fstat", file, to);
}
int fstatat(int folder, const char* path, struct stat* to, int flags) noexcept {
    return pass<decltype(fstatat)>("stat", path_at(folder, path), "fstatat", folder, path, to, flags);
}
int fstat64(int file, struct stat64* to) noexcept {
    return pass<decltype(fstat64)>("stat", path_of(file), "fstat64", file, to);
}
int statvfs(const char* path, struct statvfs* to) noexcept {
    return pass<decltype(statvfs)>("statvfs", path, "statvfs", path, to);
}

DIR* opendir(const char* path) { return pass<decltype(opendir)>("opendir", path, "opendir", path); }
DIR* fdopendir(int folder) {
    return pass<decltype(fdopendir)>("opendir", path_of(folder), "fdopendir", folder);
}
dirent* readdir(DIR* folder) {
    return pass<decltype(readdir)>("readdir", path_of(dirfd(folder)), "readdir", folder);
}

ssize_t read(int file, void* to, size_t bytes) {
    return pass<decltype(read)>("read", path_of(file), "read", file, to, bytes);
}
ssize_t pread(int file, void* to, size_t bytes, off_t at) { return read_at("pread", file, to, bytes, at); }
ssize_t pread64(int file, void* to, size_t bytes, off64_t at) {
    return read_at("pread64", file, to, bytes, at);
}

ssize_t write(int file, const void* from, size_t bytes) {
    return pass<decltype(write)>("write", path_of(file), "write", file, from, bytes);
}
ssize_t writev(int file, const iovec* from, int count) {
    return pass<decltype(writev)>("write", path_of(file), "writev", file, from, count);
}
ssize_t pwrite(int file, const void* from, size_t bytes, off_t at) {
    return pass<decltype(pwrite)>("write", path_of(file), "pwrite", file, from, bytes, at);
}
int fsync(int file) {
    const char* const family = is_folder(file) ? "syncdir" : "fsync";
    return pass<decltype(fsync)>(family, path_of(file), "fsync", file);
}
// The descriptor is closed all the same, as on Linux.
int close(int file) {
    const std::string path = path_of(file);
    const int result = original<decltype(close)>("close")(file);
    return fails("close", path) ? -1 : result;
}

// Both names count as the path.
int rename(const char* from, const char* to) noexcept {
    return pass<decltype(rename)>("rename", std::string(from) + " " + to, "rename", from, to);
}
int flock(int file, int operation) noexcept {
    return pass<decltype(flock)>("flock", path_of(file), "flock", file, operation);
}
int mkdir(const char* path, mode_t mode) noexcept {
    return pass<decltype(mkdir)>("mkdir", path, "mkdir", path, mode);
}
int unlink(const char* path) noexcept { return pass<decltype(unlink)>("unlink", path, "unlink", path); }
int rmdir(const char* path) noexcept { return pass<decltype(rmdir)>("unlink", path, "rmdir", path); }
int unlinkat(int folder, const char* path, int flags) noexcept {
    return pass<decltype(unlinkat)>("unlink", path_at(folder, path), "unlinkat", folder, path, flags);
}

}  // extern "C"
