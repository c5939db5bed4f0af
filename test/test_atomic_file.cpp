// AtomicFile: what it does with a name that is taken already
#include <sys/stat.h>

#include "system/atomic_file.h"
#include "temporary_folder.h"

namespace fs = std::filesystem;

TEST(AtomicFile, ReplacesAFile) {
    const TemporaryFolder folder;
    write_atomically(folder.write("file", "old and longer"), "new");
    EXPECT_EQ(read_file(folder / "file"), "new");
    EXPECT_EQ(folder.files().size(), 1u);
}

TEST(AtomicFile, WithoutCommitTheFileStaysAsItIs) {
    const TemporaryFolder folder;
    {
        AtomicFile file(folder.write("file", "old"));
        file.write("new", 3);
        file.close();
    }
    EXPECT_EQ(read_file(folder / "file"), "old");
    EXPECT_EQ(folder.files().size(), 1u);
}

// It replaced the link itself.
TEST(AtomicFile, ALinkStaysAndTheFileThatItLeadsToIsReplaced) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "there");
    folder.write("there/file", "old");
    fs::create_symlink("there/file", folder / "relative");
    fs::create_symlink(folder / "relative", folder / "absolute");
    write_atomically(folder / "absolute", "new");
    EXPECT_EQ(read_file(folder / "there/file"), "new");
    // a link to a file that is not there yet, through a link to its folder
    fs::create_symlink("there", folder / "folder");
    fs::create_symlink("../later", folder / "there/up");
    write_atomically(folder / "folder/up", "first");
    EXPECT_EQ(read_file(folder / "later"), "first");
    for (const char* link : {"relative", "absolute", "folder", "there/up"})
        EXPECT_TRUE(fs::is_symlink(folder / link)) << link;
    EXPECT_EQ(folder.files().size(), 5u);
}

TEST(AtomicFile, ALinkThatLeadsToItselfIsAnErrorThatNamesIt) {
    const TemporaryFolder folder;
    fs::create_symlink("loop", folder / "loop");
    EXPECT_EQ(message_of<Error>([&] { AtomicFile{folder / "loop"}; }),
              folder / "loop" + ": cannot be created: Too many levels of symbolic links");
    EXPECT_TRUE(fs::is_symlink(folder / "loop"));
}

// It replaced a FIFO by a file. As root, it would have replaced a device.
TEST(AtomicFile, AFifoIsRefusedAndStays) {
    const TemporaryFolder folder;
    ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
    fs::create_symlink("fifo", folder / "link");
    for (const char* name : {"fifo", "link"})
        EXPECT_EQ(
            message_of<UsageError>([&] { AtomicFile{folder / name}; }),
            folder / name + ": is not a regular file but a device, FIFO or socket; expected a file to write");
    EXPECT_TRUE(fs::is_fifo(folder / "fifo"));
    EXPECT_EQ(folder.files().size(), 2u);
}
