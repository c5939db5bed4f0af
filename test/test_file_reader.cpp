// Files that cannot be opened, and bytes that cannot be read: an error that names the file, the place and the
// reason. test_read_errors.py has the errors of disks.
#include "system/file_access.h"
#include "system/file_reader.h"
#include "temporary_folder.h"

namespace {

TEST(FileReader, ReadsAnyPartOfAFile) {
    const TemporaryFolder folder;
    std::string bytes(size_t{3} << 20, '\0');
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<char>(i * 2654435761u >> 16);
    const FileReader file(folder.write("file", bytes));
    EXPECT_EQ(file.size(), bytes.size());
    EXPECT_EQ(file.text(), bytes);
    EXPECT_EQ(file.text(5, 7), bytes.substr(5, 2));
    EXPECT_EQ(file.text(bytes.size() - 1), bytes.substr(bytes.size() - 1));
    EXPECT_EQ(file.text(bytes.size() + 1), "");
    for (const auto& [begin, end] : {std::pair{size_t{1}, SIZE_MAX}, {7, 7}, {9, size_t{2} << 20}}) {
        std::string pieces;
        file.read_pieces(begin, end, [&](std::string_view piece) { pieces += piece; });
        EXPECT_EQ(pieces, bytes.substr(begin, end - begin));
    }
    EXPECT_EQ(FileReader(folder.write("empty", "")).text(), "");
}

TEST(FileReader, StaysTheFileThatWasOpened) {
    const TemporaryFolder folder;
    const FileReader file(folder.write("file", "before"));
    std::filesystem::remove(file.path());
    folder.write("file", "after!");
    EXPECT_EQ(file.text(), "before");
}

// Bytes beyond the end of a shortened file fail like unreadable ones on a disk.
TEST(FileReader, AFileThatHasBecomeShorterIsAnError) {
    const TemporaryFolder folder;
    const FileReader file(folder.write("file", std::string(300, 'x')));
    std::filesystem::resize_file(file.path(), 100);
    EXPECT_EQ(file.text(0, 100), std::string(100, 'x'));
    EXPECT_EQ(message_of<ReadError>([&] { file.text(); }),
              file.path() + ": cannot be read at byte 100: the file has become shorter");
    EXPECT_EQ(message_of<ReadError>([&] { file.text(200, 250); }),
              file.path() + ": cannot be read at byte 200: the file has become shorter");
}

TEST(FileReader, NamesWhyAFileCannotBeOpened) {
    const TemporaryFolder folder;
    std::filesystem::create_symlink("loop", folder / "loop");
    EXPECT_THROW(FileReader(folder / "nothing"), UsageError);
    EXPECT_TRUE(says(message_of<AccessError>([&] { FileReader(folder / "loop"); }),
                     "loop: cannot be opened: Too many levels"));
    EXPECT_THROW(is_there(folder / "loop"), AccessError);
    EXPECT_THROW(entries_of(folder / "loop"), AccessError);
    EXPECT_FALSE(is_there(folder / "nothing"));
    EXPECT_TRUE(entries_of(folder / "nothing").empty());
}

}  // namespace
