// file_access.h: what exists at a path. "There is nothing" and "the system does not say" are different
// answers.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "system/error.h"

// The system refuses access to a file or folder (EACCES, EMFILE, ENOMEM, ESTALE, EIO, ...), so its
// contents are unknown.
class AccessError : public UsageError {
public:
    using UsageError::UsageError;
};

// Bytes of an open file cannot be read: a failing disk, or a file that has been truncated meanwhile.
class ReadError : public Error {
public:
    using Error::Error;
};

// These throw AccessError, naming the path and the system's reason, if the answer is unknown.
bool is_there(const std::string& path);  // true for a file, a folder or anything else
bool is_folder(const std::string& path);
// The entries of a folder; empty if there is no such folder.
std::vector<std::filesystem::path> entries_of(const std::string& folder);
