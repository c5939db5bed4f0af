// atomic_file.h: writes a file that is either complete or absent.
//   Bytes go to PATH.tmp-XXXXXXXX. commit() makes them durable and renames the file to PATH, replacing an
//   existing one. A failure before that (a full disk, an exception elsewhere) leaves nothing behind. A link
//   stays; PATH is then the file that it leads to.
//   Every function throws Error with the path and the system's reason.
#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

// Writes these bytes as a whole file, as AtomicFile does.
void write_atomically(const std::string& path, std::string_view bytes);

// An unused name beside path: PATH.tmp-XXXXXXXX.
std::string temporary_beside(const std::string& path);
// The name, without its folder, before .tmp-XXXXXXXX; std::nullopt for names that temporary_beside never
// returns.
std::optional<std::string> final_name_of(const std::string& name);
bool is_temporary(const std::string& name);
// Removes the files and folders PREFIX*SUFFIX.tmp-XXXXXXXX, which killed processes left incomplete, and no
// others. No other process may be writing to the folder.
void remove_leftovers(const std::string& folder, const std::string& prefix, const std::string& suffix = "");
// For a folder to which other processes may be writing: removes only leftovers that have not changed for
// this long.
void remove_leftovers(const std::string& folder, const std::string& prefix, const std::string& suffix,
                      std::chrono::hours unchanged);
// Waits until the file's bytes are on the disk.
void sync_file(const std::string& path);
// Waits until the folder's names are on the disk. No effect on file systems that cannot sync folders, or
// on a folder without read permission.
void sync_folder(const std::string& path);
// Creates the folder and missing folders above it; `failure` is set if that is impossible. Afterwards the
// names of all created folders, and of `folder` even if it existed, are on the disk.
void make_folders(const std::string& folder, std::error_code& failure);

class AtomicFile {
public:
    // UsageError if anything but a file or a folder has this name: a device or a FIFO cannot be replaced. Nor
    // can the file that is this program's standard output or error; what is printed would be lost.
    explicit AtomicFile(const std::string& path);
    AtomicFile(AtomicFile&& other) noexcept;
    AtomicFile& operator=(AtomicFile&&) = delete;
    ~AtomicFile();

    void write(const void* data, size_t bytes);                    // appends
    void write_at(size_t offset, const void* data, size_t bytes);  // overwrites bytes written before
    // Brings everything to the disk under the temporary name and frees the file descriptor.
    void close();
    void commit();  // close(), then renames to the final name and syncs that
    const std::string& path() const { return path_; }
    const std::string& temporary_path() const { return temporary_; }  // empty after commit()

private:
    void flush();
    void write_all(const void* data, size_t bytes, size_t offset);
    [[noreturn]] void fail(const char* what) const;

    std::string path_, target_;  // target_: path_ without links
    std::string temporary_;      // empty when there is nothing to remove
    int file_ = -1;
    std::vector<char> buffer_;
    size_t flushed_ = 0;  // bytes in the file; the buffer follows them
};
