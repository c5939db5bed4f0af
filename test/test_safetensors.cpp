// The reader accepts the files of Hugging Face's writer and ours, and rejects everything else in one line.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "temporary_folder.h"
#include "trainer/formats/safetensors.h"

class Safetensors : public ::testing::Test {
protected:
    // A file with this header text and number of data bytes.
    void write_file(const std::string& header, size_t data_bytes) {
        const uint64_t length = header.size();
        write_bytes(std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
                    std::string(data_bytes, '\1'));
    }
    void write_bytes(const std::string& bytes) { folder_.write("file", bytes); }

    // Reads the file and everything in it. Returns the message if it was rejected, which must be one line
    // that names the file.
    std::string refusal() {
        try {
            const SafetensorsFile file(path_);
            for (const auto& [name, tensor] : file.tensors()) {
                EXPECT_EQ(file.bytes(name).size(), tensor.bytes);
                EXPECT_EQ(file.at(name).elements() == 0, tensor.bytes == 0);
            }
            return "";
        } catch (const UsageError& error) {
            const std::string message = error.what();
            EXPECT_TRUE(message.starts_with(path_ + ": ")) << message;
            EXPECT_EQ(message.find_first_of("\n\r"), std::string::npos) << message;
            return message.substr(path_.size() + 2);
        }
    }

    const TemporaryFolder folder_;
    const std::string path_ = folder_ / "file";
};

TEST_F(Safetensors, WhatIsWrittenIsReadBack) {
    const std::vector<float> weight = {1.5f, -0.0f, INFINITY, 1e-40f, 3, 4};
    const std::vector<int32_t> tokens = {-7, INT32_MAX};
    const std::vector<int64_t> wide = {1, INT32_MIN};
    const std::vector<uint8_t> bytes = {0, 255, 3};
    const std::vector<uint16_t> bf16 = {0x3f80, 0xc000}, f16 = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x7bff};
    write_safetensors(path_,
                      {{"bytes", "U8", {3}, bytes.data()},
                       {"weight", "F32", {2, 3}, weight.data()},
                       {"tokens", "I32", {2}, tokens.data()},
                       {"wide", "I64", {1, 2, 1}, wide.data()},
                       {"bf16", "BF16", {2}, bf16.data()},
                       {"f16", "F16", {5}, f16.data()},
                       {"empty", "F32", {0, 9}, nullptr},
                       {"scalar", "F32", {}, weight.data()}},
                      {{"format", "pt"}, {"note", "line\nbreak"}});
    const SafetensorsFile file(path_);
    EXPECT_EQ(file.tensors().size(), 8u);
    EXPECT_EQ(file.metadata().at("note"), "line\nbreak");
    EXPECT_EQ(file.at("weight").shape, (std::vector<size_t>{2, 3}));
    EXPECT_EQ(std::memcmp(file.floats("weight").data(), weight.data(), 6 * sizeof(float)), 0);
    EXPECT_EQ(file.ints("tokens"), (std::vector<int>{-7, INT32_MAX}));
    EXPECT_EQ(file.ints("wide"), (std::vector<int>{1, INT32_MIN}));
    EXPECT_EQ(file.ints("bytes"), (std::vector<int>{0, 255, 3}));
    EXPECT_EQ(file.floats("bf16"), (std::vector<float>{1, -2}));
    EXPECT_EQ(file.floats("f16"), (std::vector<float>{1, -2, 0x1p-24f, INFINITY, 65504}));
    std::vector<float> part(3);
    file.floats("f16", part, 1);
    EXPECT_EQ(part, (std::vector<float>{-2, 0x1p-24f, INFINITY}));
    EXPECT_THROW(file.floats("f16", part, 3), UsageError);
    EXPECT_THROW(file.floats("bf16", part), UsageError);
    EXPECT_EQ(file.floats("empty").size(), 0u);
    EXPECT_EQ(file.floats("scalar"), (std::vector<float>{1.5f}));
    for (const auto& [name, tensor] : file.tensors()) {
        if (tensor.bytes == 0) continue;
        EXPECT_EQ(tensor.begin % (tensor.bytes / tensor.elements()), 0u) << name << " is not aligned";
    }
}

TEST_F(Safetensors, ReadsWhatHuggingFaceWrote) {
    const SafetensorsFile dump(PROJECT_ROOT "/test/reference/gelu.safetensors");
    EXPECT_EQ(dump.at("inp").dtype, "F32");
    EXPECT_EQ(dump.at("inp").shape, dump.at("dinp").shape);
    EXPECT_EQ(dump.floats("inp").size(), dump.at("inp").elements());
    EXPECT_TRUE(dump.contains("out"));
    EXPECT_FALSE(dump.contains("nothing"));
}

TEST_F(Safetensors, AskingForWhatIsNotThereNamesFileAndTensor) {
    const float value = 1;
    const int64_t large = int64_t{1} << 40;
    write_safetensors(path_, {{"real", "F32", {1}, &value}, {"large", "I64", {1}, &large}});
    const SafetensorsFile file(path_);
    const auto message = [&](auto call) { return message_of<UsageError>(call); };
    EXPECT_EQ(message([&] { file.at("absent"); }), path_ + ": has no tensor \"absent\"");
    EXPECT_EQ(message([&] { file.ints("real"); }),
              path_ + ": tensor \"real\" is F32, where integers were expected");
    EXPECT_EQ(message([&] { file.floats("large"); }),
              path_ + ": tensor \"large\" is I64, where F32, BF16, F16 or F64 was expected");
    EXPECT_EQ(message([&] { file.ints("large"); }),
              path_ + ": tensor \"large\" has the element 1099511627776, which is no 32-bit integer");
}

TEST_F(Safetensors, WriterRefusesTwoTensorsOfOneNameAndUnknownTypes) {
    const float value = 1;
    EXPECT_THROW(write_safetensors(path_, {{"a", "F32", {1}, &value}, {"a", "F32", {1}, &value}}),
                 UsageError);
    EXPECT_THROW(write_safetensors(path_, {{"__metadata__", "F32", {1}, &value}}), UsageError);
    EXPECT_THROW(write_safetensors(path_, {{"a", "float", {1}, &value}}), UsageError);
    EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Safetensors, HostileFilesAreRefusedInOneLine) {
    struct Case {
        std::string header;
        size_t data_bytes;
        std::string expected;
    };
    const Case cases[] = {
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, "lies outside the file's 7 bytes"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9,
         "1 bytes of data belong to no tensor"},
        {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
         "has 8 bytes of data, but its dtype and shape need 12"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "lies outside"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", 8, "lies outside"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", 8, "lies outside"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,99999999999999999999]}})", 8,
         "whole numbers as data_offsets"},
        {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "whole numbers as shape"},
        {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "whole numbers as shape"},
        {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, "whole numbers as shape"},
        {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0,
         "more than 2^64 bytes"},
        {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8,
         "dtype \"F33\", which safetensors does not have"},
        {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8, "no dtype"},
        {R"({"a":{"dtype":"F32","shape":[2]}})", 8, "whole numbers as data_offsets"},
        {R"({"a":7})", 8, "\"a\" in its header is not an object"},
        {R"({"__metadata__":{"a":7}})", 0, "\"a\" in its metadata is not a text"},
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],)"
         R"("data_offsets":[3,7]}})",
         7, "\"b\" begins at byte 3 of the data, inside another tensor that ends at 4"},
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],)"
         R"("data_offsets":[5,7]}})",
         7, "\"b\" begins at byte 5 of the data, after a gap that begins at 4"},
        {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[2],)"
         R"("data_offsets":[4,6]}})",
         6, "has \"a\" twice"},
        {R"({"a":{"dtype":"U8","dtype":"F32","shape":[4],"data_offsets":[0,4]}})", 4, "has \"dtype\" twice"},
        {"{\"a\\nb\":7}", 0, "\"a\\nb\" in its header"},  // a line break in a name must not break our line
        {"{\"a\":", 0, "not JSON"},
        {"[]", 0, "does not begin with '{'"},
        {"", 0, "does not begin with '{'"},
        {"{\"a\":" + std::string(1'000'000, '['), 0, "nested too deeply"},
    };
    for (const Case& c : cases) {
        write_file(c.header, c.data_bytes);
        EXPECT_TRUE(says(refusal(), c.expected)) << c.header.substr(0, 120);
    }
    for (const std::string& bytes : {std::string(), std::string("1234567"), std::string(8, '\xff'),
                                     std::string("\x10\0\0\0\0\0\0\0{}", 10)}) {
        write_bytes(bytes);
        EXPECT_NE(refusal(), "") << bytes.size() << " bytes";
    }
    std::filesystem::remove(path_);
    EXPECT_NE(refusal(), "") << "no file";
}

TEST_F(Safetensors, EveryTruncationIsRefused) {
    const std::vector<float> data(6, 1);
    write_safetensors(path_, {{"a", "F32", {2, 3}, data.data()}, {"b", "F32", {1}, data.data()}},
                      {{"k", "v"}});
    const std::string whole = read_file(path_);
    ASSERT_EQ(refusal(), "");
    for (size_t size = 0; size < whole.size(); size++) {
        write_bytes(whole.substr(0, size));
        EXPECT_NE(refusal(), "") << size << " of " << whole.size() << " bytes";
    }
}

// The checked build runs this under AddressSanitizer: a mutant is read completely or rejected, without
// access outside the file.
TEST_F(Safetensors, MutatedFilesNeverCrash) {
    const std::vector<float> data(16, 1);
    write_safetensors(path_,
                      {{"a", "F32", {2, 3}, data.data()},
                       {"bb", "BF16", {4}, data.data()},
                       {"c", "I64", {1, 1}, data.data()},
                       {"d", "U8", {0}, nullptr}},
                      {{"k", "v"}});
    const std::string whole = read_file(path_);
    const unsigned seed = 1;
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    const std::string pieces[] = {
        "0",       "9",       "-1",  "18446744073709551616", "1e9", "null", "[", "]", "{", "}", "\"", ",",
        "\\u0000", "\"F32\"", "\xff"};
    int accepted = 0;
    for (int mutant = 0; mutant < 5000; mutant++) {
        std::string bytes = whole;
        for (size_t edits = 1 + below(3); edits > 0; edits--) {
            const size_t at = below(bytes.size());
            switch (below(5)) {
                case 0: bytes[at] = static_cast<char>(random()); break;
                case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
                case 2: bytes.insert(at, pieces[below(std::size(pieces))]); break;
                case 3: bytes.erase(at, 1 + below(4)); break;
                case 4: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(20))); break;
            }
            if (bytes.empty()) bytes = "x";
            // Half of the mutants keep a correct length, so that the header's content is reached.
            if (bytes.size() > 8 && below(2) == 0) {
                const uint64_t length =
                    bytes.find("}}", 8) == std::string::npos ? 0 : bytes.find("}}", 8) + 2 - 8;
                std::memcpy(bytes.data(), &length, sizeof length);
            }
        }
        write_bytes(bytes);
        SCOPED_TRACE(fmt::format("seed {}, mutant {}", seed, mutant));
        accepted += refusal().empty();
    }
    EXPECT_GT(accepted, 0) << "no mutant reached the data";
}
