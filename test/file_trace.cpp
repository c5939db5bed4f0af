// file_trace.cpp: a library for LD_PRELOAD that records a program's changes below one folder, in order
//   FILE_TRACE_ROOT   the folder, as an absolute path without links
//   FILE_TRACE        the trace, a line each, separated by tabs; files and folders are known by their inode:
//                       create FOLDER NAME INODE      mkdir FOLDER NAME INODE     unlink FOLDER NAME
//                       rename FOLDER NAME FOLDER NAME
//                       write INODE OFFSET BYTES      sync INODE
//                       said BYTES                    the size of standard output, a file, after fflush
//                     FILE_TRACE.data holds the bytes of all writes, one after the other
// These are the calls that our programs and libstdc++ make; test_durability.py notices a change that is not
// in the trace.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "preloaded_calls.h"

namespace {

// Locked during a call and the writing of its line, so that the lines are in the order of the calls.
std::recursive_mutex one_at_a_time;

int opened(const std::string& suffix) {
    const std::string path = std::getenv("FILE_TRACE") + suffix;
    return static_cast<int>(
        syscall(SYS_openat, AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
}

void append(int file, const void* from, size_t bytes) {
    for (const char* next = static_cast<const char*>(from); bytes > 0;) {
        const long written = syscall(SYS_write, file, next, bytes);
        if (written < 0) std::abort();
        next += written;
        bytes -= static_cast<size_t>(written);
    }
}

template <class... Fields>
void log(const char* operation, const Fields&... fields) {
    static const int file = opened("");
    const int error = errno;
    std::string line = operation;
    const auto add = [&](const auto& field) {
        line += '\t';
        if constexpr (requires { std::to_string(field); }) line += std::to_string(field);
        else line += field;
    };
    (add(fields), ...);
    line += '\n';
    append(file, line.data(), line.size());
    errno = error;
}

void log_write(ino_t inode, off_t offset, const void* from, size_t bytes) {
    static const int data = opened(".data");
    append(data, from, bytes);
    log("write", inode, offset, bytes);
}

// The path that an ...at() call refers to.
std::string path_at(int folder, const char* path) {
    if (*path == '/') return path;
    if (folder != AT_FDCWD) return path_of(folder) + "/" + path;
    char working[PATH_MAX];
    return std::string(getcwd(working, sizeof(working)) != nullptr ? working : "") + "/" + path;
}

bool is_below_root(const std::string& path) {
    static const std::string root = std::string(std::getenv("FILE_TRACE_ROOT")) + "/";
    return path.starts_with(root) || path + "/" == root;
}

// The inode's number; 0 if there is none.
ino_t inode_at(const std::string& path) {
    struct stat status;
    const int error = errno;
    const bool there = fstatat(AT_FDCWD, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
    errno = error;
    return there ? status.st_ino : 0;
}

ino_t inode_of(int file) {
    struct stat status;
    return fstat(file, &status) == 0 ? status.st_ino : 0;
}

// A name in a folder.
struct Entry {
    explicit Entry(const std::string& path)
        : folder(inode_at(path.substr(0, path.rfind('/')))), name(path.substr(path.rfind('/') + 1)) {}
    ino_t folder;
    std::string name;
};

// Calls `open`, which makes the file if it is not there and succeeds with something other than `failed`.
template <class Open, class Result>
Result open_traced(const std::string& path, bool makes, const Open& open, Result failed) {
    if (!makes || !is_below_root(path)) return open();
    const std::lock_guard lock(one_at_a_time);
    const bool there = inode_at(path) != 0;
    const Result result = open();
    if (there || result == failed) return result;
    const Entry entry(path);
    log("create", entry.folder, entry.name, inode_at(path));
    return result;
}

// A call on an open file that returns how many bytes it wrote; log writes the line.
template <class Call, class Log>
ssize_t write_traced(int file, const Call& call, const Log& log) {
    if (!is_below_root(path_of(file))) return call();
    const std::lock_guard lock(one_at_a_time);
    const ssize_t written = call();
    if (written > 0) log(static_cast<size_t>(written));
    return written;
}

// A call on an open file or on names that returns 0 if it succeeded.
template <class Call, class Log>
int change_traced(const std::string& path, const Call& call, const Log& log) {
    if (!is_below_root(path)) return call();
    const std::lock_guard lock(one_at_a_time);
    const int result = call();
    if (result == 0) log();
    return result;
}

int removed(const std::string& path, const auto& call) {
    const Entry entry(path);
    return change_traced(path, call, [&] { log("unlink", entry.folder, entry.name); });
}

off_t place_before(int file, size_t written) {
    return lseek(file, 0, SEEK_CUR) - static_cast<off_t>(written);
}

}  // namespace

// The C library's names, and its words in their declarations.
extern "C" {

int open(const char* path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open_traced(
        path_at(AT_FDCWD, path), (flags & O_CREAT) != 0,
        [&] { return original<decltype(open)>("open")(path, flags, mode); }, -1);
}
FILE* fopen64(const char* path, const char* mode) {
    return open_traced(
        path_at(AT_FDCWD, path), *mode != 'r',
        [&] { return original<decltype(fopen64)>("fopen64")(path, mode); }, static_cast<FILE*>(nullptr));
}

ssize_t write(int file, const void* from, size_t bytes) {
    return write_traced(
        file, [&] { return original<decltype(write)>("write")(file, from, bytes); },
        [&](size_t written) { log_write(inode_of(file), place_before(file, written), from, written); });
}
ssize_t writev(int file, const iovec* from, int count) {
    return write_traced(
        file, [&] { return original<decltype(writev)>("writev")(file, from, count); },
        [&](size_t written) {
            std::string bytes;
            for (int i = 0; i < count; i++)
                bytes.append(static_cast<const char*>(from[i].iov_base), from[i].iov_len);
            log_write(inode_of(file), place_before(file, written), bytes.data(), written);
        });
}
ssize_t pwrite(int file, const void* from, size_t bytes, off_t at) {
    return write_traced(
        file, [&] { return original<decltype(pwrite)>("pwrite")(file, from, bytes, at); },
        [&](size_t written) { log_write(inode_of(file), at, from, written); });
}
int fsync(int file) {
    return change_traced(
        path_of(file), [&] { return original<decltype(fsync)>("fsync")(file); },
        [&] { log("sync", inode_of(file)); });
}
int fflush(FILE* file) {
    const std::lock_guard lock(one_at_a_time);
    const int result = original<decltype(fflush)>("fflush")(file);
    struct stat status;
    if (file == stdout && fstat(STDOUT_FILENO, &status) == 0) log("said", status.st_size);
    return result;
}

int rename(const char* from, const char* to) noexcept {
    const Entry before(path_at(AT_FDCWD, from)), after(path_at(AT_FDCWD, to));
    return change_traced(
        path_at(AT_FDCWD, to), [&] { return original<decltype(rename)>("rename")(from, to); },
        [&] { log("rename", before.folder, before.name, after.folder, after.name); });
}
int mkdir(const char* path, mode_t mode) noexcept {
    const std::string whole = path_at(AT_FDCWD, path);
    return change_traced(
        whole, [&] { return original<decltype(mkdir)>("mkdir")(path, mode); },
        [&] {
            const Entry entry(whole);
            log("mkdir", entry.folder, entry.name, inode_at(whole));
        });
}
int unlink(const char* path) noexcept {
    return removed(path_at(AT_FDCWD, path), [&] { return original<decltype(unlink)>("unlink")(path); });
}
int remove(const char* path) noexcept {
    return removed(path_at(AT_FDCWD, path), [&] { return original<decltype(remove)>("remove")(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
    return removed(path_at(folder, path),
                   [&] { return original<decltype(unlinkat)>("unlinkat")(folder, path, flags); });
}

}  // extern "C"
