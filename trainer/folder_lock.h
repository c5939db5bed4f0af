// folder_lock.h: two processes that write to one folder would spoil the work of both.
#pragma once
#include <string>
#include <utility>

// Claims a folder as long as it lives. The system gives it back when the process ends, however it ends; nothing is left in the folder.
class FolderLock {
public:
    // UsageError if another process, which is `doing` the same, holds it. File systems that have no locks are not asked again.
    FolderLock(const std::string& folder, const std::string& doing);
    FolderLock(FolderLock&& other) noexcept : folder_(std::exchange(other.folder_, -1)) {}
    FolderLock& operator=(FolderLock&&) = delete;
    ~FolderLock();

private:
    int folder_;
};
