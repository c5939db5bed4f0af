// atomic_file.h: writes a file that is either complete or not there at all.
//   Bytes go to PATH.tmp-XXXXXXXX; commit() makes them durable and gives them their name, replacing what had
//   it.
//   Whatever goes wrong before that (a full disk, an exception elsewhere) leaves nothing behind.
//   Every function throws Error with the path and the system's reason.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

// Writes a whole file with these bytes, as AtomicFile does.
void write_atomically(const std::string& path, std::string_view bytes);

// A name beside path that nobody uses: PATH.tmp-XXXXXXXX.
std::string temporary_beside(const std::string& path);
// Paths of files and folders PREFIX*SUFFIX.tmp-XXXXXXXX: processes that were killed left them half written.
// Nobody else may be writing to the folder. Other names are never leftovers.
std::vector<std::string> leftovers(const std::string& folder, const std::string& prefix,
                                   const std::string& suffix = "");
// The second form is for a folder that others may be writing to: only what has not changed for as long is
// taken for a leftover.
void remove_leftovers(const std::string& folder, const std::string& prefix, const std::string& suffix = "");
void remove_leftovers(const std::string& folder, const std::string& prefix, const std::string& suffix,
                      std::chrono::hours unchanged);
// True for the names that temporary_beside gives, without their folder.
bool is_temporary(const std::string& name);
// Waits until the file's bytes are on the disk.
void sync_file(const std::string& path);
// Waits until the folder's names are on the disk. Without effect on file systems that do not sync folders,
// and on a folder that may not be read.
void sync_folder(const std::string& path);
// Makes the folder and what is missing above it; failure says if it cannot. The names of all that was made,
// and the folder's own if it was there before, are on the disk then.
void make_folders(const std::string& folder, std::error_code& failure);

class AtomicFile {
public:
    explicit AtomicFile(const std::string& path);
    AtomicFile(AtomicFile&& other) noexcept;
    AtomicFile& operator=(AtomicFile&&) = delete;
    ~AtomicFile();

    void write(const void* data, size_t bytes);                    // appends
    void write_at(size_t offset, const void* data, size_t bytes);  // overwrites bytes written before
    // everything is on the disk, under the temporary name; frees the file descriptor
    void close();
    void commit();  // close(), then the final name, synced too
    const std::string& path() const { return path_; }
    const std::string& temporary_path() const { return temporary_; }  // empty after commit()

private:
    void flush();
    void write_all(const void* data, size_t bytes, size_t offset);
    [[noreturn]] void fail(const char* what) const;

    std::string path_, temporary_;  // temporary_ is empty once there is nothing to remove
    int file_ = -1;
    std::vector<char> buffer_;
    size_t flushed_ = 0;  // bytes in the file; the buffer follows them
};
