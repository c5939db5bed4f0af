#include "system/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "system/error.h"

FolderLock::FolderLock(const std::string& folder, const std::string& doing, const Note& note)
    : folder_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_ >= 0 && flock(folder_, LOCK_EX | LOCK_NB) == 0) return;
    if (folder_ < 0 || errno != EWOULDBLOCK) {
        const std::string lock = fmt::format("{}: cannot be locked: {}", folder, std::strerror(errno));
        note(fmt::format("{}; another process {} there would not be noticed", lock, doing));
        return;
    }
    close(folder_);
    throw UsageError(fmt::format("{}: another process is {} there; expected one at a time", folder, doing));
}

FolderLock::~FolderLock() {
    if (folder_ >= 0) close(folder_);
}
