// tokenizer_speed: how fast a text becomes tokens on one core, for compare_tokenizers.py.
//   tokenizer_speed TOKENIZER FILE    for each line on standard input, encodes the text once and writes the
//                                     seconds and the number of tokens
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "system/file_reader.h"
#include "trainer/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    try {
        const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(argv[1]);
        const std::string text = FileReader(argv[2]).text();
        for (std::string line; std::getline(std::cin, line);) {
            const auto start = std::chrono::steady_clock::now();
            const size_t tokens = tokenizer->encode(text).size();
            const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
            std::printf("%.6f %zu\n", seconds.count(), tokens);
            std::fflush(stdout);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "tokenizer_speed: %s\n", error.what());
        return 1;
    }
}
