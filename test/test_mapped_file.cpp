// Mapped files whose bytes cannot be read: either an error that names the file and the offset, or one line
// and the end of the program; never a bare SIGBUS.
#include <fcntl.h>
#include <sys/mman.h>

#include <csignal>

#include "kernels/simt/target.h"
#include "system/file_access.h"
#include "system/mapped_file.h"
#include "temporary_folder.h"

namespace {

const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));

class CutFile : public testing::Test {
protected:
    CutFile() {
        // bytes beyond the end of a shortened file fail like unreadable ones on a disk
        std::filesystem::resize_file(path, page);
    }
    char last_byte() const { return *static_cast<const volatile char*>(file.bytes().data() + 3 * page - 1); }

    TemporaryFolder folder;
    const std::string path = folder.write("file", std::string(3 * page, 'x'));
    const MappedFile file{path};
};

TEST_F(CutFile, ACopyThatCannotBeMadeIsAnError) {
    const std::string expected =
        path + ": cannot be read at byte " + std::to_string(2 * page) + ": the file has become shorter";
    std::string copy(page, ' ');
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(message_of<ReadError>([&] { file.copy(copy.data(), 2 * page, page); }), expected);
        file.copy(copy.data(), 0, page);
        EXPECT_EQ(copy, std::string(page, 'x'));
    }
    EXPECT_THROW(file.text(), ReadError);
}

TEST_F(CutFile, BytesThatCannotBeReadEndTheProgramWithOneLine) {
    EXPECT_EXIT(last_byte(), testing::ExitedWithCode(1),
                "^test_mapped_file: .*/file: cannot be read at byte " + std::to_string(3 * page - 1) +
                    ": the file has become shorter\n$");
}

TEST_F(CutFile, ASignalThatIsNoReadErrorStaysWhatItWas) {
    if (simt::checked) GTEST_SKIP() << "AddressSanitizer handles the signal";
    EXPECT_EXIT(std::raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
    const auto touch_other_mapping = [] {
        const TemporaryFolder other;
        const int descriptor = open(other.write("empty", "").c_str(), O_RDONLY);
        const void* const memory = mmap(nullptr, page, PROT_READ, MAP_PRIVATE, descriptor, 0);
        return *static_cast<const volatile char*>(memory);
    };
    EXPECT_EXIT(touch_other_mapping(), testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFile, NamesWhyAFileCannotBeOpened) {
    const TemporaryFolder folder;
    std::filesystem::create_symlink("loop", folder / "loop");
    EXPECT_THROW(MappedFile(folder / "nothing"), UsageError);
    EXPECT_NE(message_of<AccessError>([&] {
                  MappedFile(folder / "loop");
              }).find("loop: cannot be opened: Too many levels"),
              std::string::npos);
    EXPECT_THROW(is_there(folder / "loop"), AccessError);
    EXPECT_THROW(entries_of(folder / "loop"), AccessError);
    EXPECT_FALSE(is_there(folder / "nothing"));
    EXPECT_TRUE(entries_of(folder / "nothing").empty());
    EXPECT_EQ(MappedFile(folder.write("empty", "")).text(), "");
}

}  // namespace
