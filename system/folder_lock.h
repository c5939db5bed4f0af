// folder_lock.h: two processes that write to one folder would spoil the work of both.
#pragma once
#include <string>
#include <utility>

#include "system/note.h"

// Claims a folder as long as it lives. The system gives it back when the process ends, however it ends;
// nothing is left in the folder.
class FolderLock {
public:
    // UsageError if another process, which is `doing` the same, holds it. Where the file system has no locks,
    // a note says that another process would not be noticed.
    FolderLock(const std::string& folder, const std::string& doing, const Note& note = note_on_stderr);
    FolderLock(FolderLock&& other) noexcept : folder_(std::exchange(other.folder_, -1)) {}
    FolderLock& operator=(FolderLock&&) = delete;
    ~FolderLock();

private:
    int folder_;
};
