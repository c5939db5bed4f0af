// reference_strings.h: strings and the tokens that another tokenizer made of them, as
// dev/reference_tokenizer.py writes them.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "system/file_reader.h"
#include "trainer/tokenizer/token.h"

// Calls check(text, tokens) for each of the strings in a file of test/reference; returns how many they are.
template <class Check>
size_t for_each_reference_string(const std::string& name, Check check) {
    const std::string file = FileReader(PROJECT_ROOT "/test/reference/" + name).text();
    const char* next = file.data();
    const auto read_uint32 = [&] {
        uint32_t value;
        std::memcpy(&value, next, sizeof(value));
        next += sizeof(value);
        return value;
    };
    const uint32_t strings = read_uint32();
    for (uint32_t i = 0; i < strings; i++) {
        const uint32_t bytes = read_uint32(), count = read_uint32();
        const std::string text(next, bytes);
        std::vector<uint16_t> narrow(count);
        if (count > 0) std::memcpy(narrow.data(), next + bytes, count * sizeof(uint16_t));
        next += bytes + count * sizeof(uint16_t);
        const std::vector<Token> tokens(narrow.begin(), narrow.end());
        SCOPED_TRACE(::testing::PrintToString(text));
        check(text, tokens);
    }
    EXPECT_EQ(next, file.data() + file.size());
    return strings;
}
