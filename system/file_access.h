// file_access.h: what is at a path, where "nothing" and "the system does not say" are different answers.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "system/error.h"

// The system refuses to show a file or folder (EACCES, EMFILE, ENOMEM, ESTALE, EIO, ...): nothing is known of
// what is in it.
class AccessError : public UsageError {
public:
    using UsageError::UsageError;
};

// Bytes of a file that was opened cannot be read: a failing disk, or a file that has become shorter
// meanwhile.
class ReadError : public Error {
public:
    using Error::Error;
};

// These throw AccessError, naming the path and the system's reason, unless the answer is known.
bool is_there(const std::string& path);  // a file, a folder, or anything else
bool is_folder(const std::string& path);
// The entries of a folder; none if there is no such folder.
std::vector<std::filesystem::path> entries_of(const std::string& folder);
