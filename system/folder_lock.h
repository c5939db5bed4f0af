// folder_lock.h: keeps two processes from writing to the same folder, which would damage the work of
// both.
#pragma once
#include <string>
#include <utility>

#include "system/note.h"

// Locks a folder for its lifetime. The system releases the lock when the process ends, however it ends;
// nothing is left in the folder.
class FolderLock {
public:
    // UsageError if another process holds the lock; `doing` says in messages what both are doing. If the
    // file system has no locks, a note warns that another process would not be noticed.
    FolderLock(const std::string& folder, const std::string& doing, const Note& note = note_on_stderr);
    FolderLock(FolderLock&& other) noexcept : folder_(std::exchange(other.folder_, -1)) {}
    FolderLock& operator=(FolderLock&&) = delete;
    ~FolderLock();

private:
    int folder_;
};
