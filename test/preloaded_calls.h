// preloaded_calls.h: shared by the libraries for LD_PRELOAD
#pragma once
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <string>

// The path of an open file; "" if it has none. errno stays as it is.
inline std::string path_of(int file) {
    char path[PATH_MAX];
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    const int error = errno;
    const ssize_t bytes = readlink(link.c_str(), path, sizeof(path));
    errno = error;
    return bytes > 0 ? std::string(path, static_cast<size_t>(bytes)) : "";
}

// The mode of open(), which callers give only with these flags.
inline mode_t mode_of(int flags, va_list arguments) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

// The function that this library replaces.
template <class Function>
Function* original(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
