// The tokenize program, run as users run it: the shards it writes, its exit codes, and that an error
// leaves no files behind.
#include <gtest/gtest.h>

#include <algorithm>

#include "program.h"
#include "system/data_directory.h"
#include "system/folder_lock.h"
#include "trainer/data/data_files.h"
#include "write_shard.h"

static ProgramResult tokenize(const std::string& arguments, const std::string& before = "cd /") {
    return run_program(TOKENIZE_PROGRAM, arguments, before);
}

TEST(TokenizeProgram, TinyshakespeareIsTheKnownStream) {
    const TemporaryFolder folder;
    const std::string text = data_directory() + "/tinyshakespeare.txt", out = folder / "a/b";
    const ProgramResult result = tokenize("--tokenizer gpt2 --out " + out + " " + text);
    EXPECT_TRUE(succeeded(result));
    EXPECT_EQ(result.output, out + "/train_000000.bin: 338025 tokens\n");
    EXPECT_EQ(result.errors, "");
    EXPECT_EQ(tokens_in(out + "/train_000000.bin"), make_tokenizer("gpt2")->encode(read_file(text)));
    EXPECT_FALSE(std::filesystem::exists(out + "/val_000000.bin"));
}

TEST(TokenizeProgram, EndOfTextStandsBetweenFiles) {
    const TemporaryFolder folder;
    const std::string files = folder.write("a", "one two") + " " + folder.write("empty", "") + " " +
                              folder.write("b", "<|endoftext|>") + " " + folder.write("c", "three");
    const auto gpt2 = make_tokenizer("gpt2");
    ASSERT_TRUE(succeeded(tokenize("--out " + folder / "gpt2" + " " + files)));
    std::vector<Token> expected = gpt2->encode("one two");
    for (const char* text : {"<|endoftext|>", "three"}) {
        expected.push_back(50256);
        for (const Token token : gpt2->encode(text)) expected.push_back(token);
    }
    EXPECT_EQ(tokens_in(folder / "gpt2/train_000000.bin"), expected);

    ASSERT_TRUE(succeeded(tokenize("--tokenizer byte --out " + folder / "byte" + " " + files)));
    EXPECT_EQ(make_tokenizer("byte")->decode(tokens_in(folder / "byte/train_000000.bin")),
              "one two<|endoftext|>three");
}

TEST(TokenizeProgram, AFolderIsTheTextsInIt) {
    const TemporaryFolder folder;
    for (const char* name : {"notes", "notes/old"}) std::filesystem::create_directory(folder / name);
    folder.write("notes/b.md", "two");
    folder.write("notes/a.txt", "one");
    folder.write("notes/old/c", "three");
    folder.write("notes/picture.png", std::string(10, '\0'));
    ASSERT_TRUE(succeeded(tokenize("--tokenizer byte --out " + folder / "out" + " " + folder / "notes")));
    EXPECT_EQ(make_tokenizer("byte")->decode(tokens_in(folder / "out/train_000000.bin")), "onetwothree");
}

TEST(TokenizeProgram, FilesNamedForValidationAreTheValidationShards) {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "wiki");
    for (const char* split : {"train", "valid", "test"})
        folder.write(fmt::format("wiki/wiki.{}.raw", split), split);
    const std::string out = " --out " + folder / "out" + " " + folder / "wiki";
    const ProgramResult refused = tokenize("--tokenizer byte --val-fraction 0.1" + out);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(
        says(refused.errors, "--val-fraction 0.1: " + folder / "wiki/wiki.valid.raw" +
                                 " is the validation data, by its name; expected no --val-fraction, or files "
                                 "instead of the folder\n"));
    ASSERT_TRUE(succeeded(tokenize("--tokenizer byte" + out)));
    const auto byte = make_tokenizer("byte");
    EXPECT_EQ(byte->decode(tokens_in(folder / "out/train_000000.bin")), "train");
    EXPECT_EQ(byte->decode(tokens_in(folder / "out/val_000000.bin")), "valid");
}

// train_gpt2 makes the same stream of the same texts.
TEST(TokenizeProgram, MakesTheShardsThatTrainingOnTheTextsMakes) {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder / "notes");
    for (int i = 0; i < 30; i++)
        folder.write(fmt::format("notes/{:02}.md", i), fmt::format("\xEF\xBB\xBFnote {} of thirty", i));
    ASSERT_TRUE(succeeded(tokenize("--val-fraction 0.1 --out " + folder / "out" + " " + folder / "notes")));
    const DataSplits data = open_data({folder / "notes"}, {}, *make_tokenizer("gpt2"));
    EXPECT_EQ(tokens_in(folder / "out/train_000000.bin"), data.train[0].tokens());
    EXPECT_EQ(tokens_in(folder / "out/val_000000.bin"), data.val[0].tokens());
}

TEST(TokenizeProgram, HoldsOutTheLastFractionOfAllBytes) {
    const TemporaryFolder folder;
    const std::string files = folder.write("a", "0123456789") + " " + folder.write("b", "abcdefghij");
    const auto byte = make_tokenizer("byte");
    const auto split = [&](const std::string& fraction) {
        const std::string out = folder / fraction;
        EXPECT_TRUE(succeeded(
            tokenize("--tokenizer byte --val-fraction " + fraction + " --out " + out + " " + files)));
        return byte->decode(tokens_in(out + "/train_000000.bin")) + "|" +
               byte->decode(tokens_in(out + "/val_000000.bin"));
    };
    EXPECT_EQ(split("0.25"), "0123456789abcde|fghij");
    EXPECT_EQ(split("0.5"), "0123456789|abcdefghij");
    EXPECT_EQ(split("0.75"), "01234|56789abcdefghij");

    // The split of a lone text is the same as in training on the text itself.
    const std::string text = data_directory() + "/tinyshakespeare.txt",
                      copy = folder.write("shakespeare.txt", read_file(text));
    ASSERT_TRUE(succeeded(tokenize("--val-fraction 0.1 --out " + folder / "s" + " " + text)));
    const DataSplits lone = open_data({copy}, {}, *make_tokenizer("gpt2"));
    EXPECT_EQ(tokens_in(folder / "s/train_000000.bin"), lone.train[0].tokens());
    EXPECT_EQ(tokens_in(folder / "s/val_000000.bin"), lone.val[0].tokens());
}

TEST(TokenizeProgram, WrongUseIsOneLineAndExitCodeTwo) {
    const TemporaryFolder folder;
    const std::string text = folder.write("a.txt", "some text"), empty = folder.write("empty.txt", ""),
                      out = folder / "new/out";
    const auto errors = [&](const std::string& arguments) {
        const ProgramResult result = tokenize(arguments);
        EXPECT_EQ(result.output, "");
        EXPECT_FALSE(std::filesystem::exists(folder / "new")) << arguments;
        return refusal_of(result);
    };
    const std::string to_out = "--out " + out + " ";
    EXPECT_EQ(errors(to_out + folder / "none.txt"),
              "tokenize: no file matches '" + folder / "none.txt" + "'; expected token shards or texts\n");
    EXPECT_EQ(errors(to_out + text + " /dev/null"), "tokenize: /dev/null: is not a regular file\n");
    const std::string shard = folder.write("shard", "\x88\xD8\x34\x01, and no more");
    EXPECT_EQ(errors(to_out + shard), "tokenize: " + shard + ": is already a token shard; expected texts\n");
    EXPECT_EQ(errors(to_out + empty), "tokenize: " + empty + ": there is no text to tokenize\n");
    const std::string mark = folder.write("mark.txt", "\xEF\xBB\xBF");
    EXPECT_EQ(errors(to_out + mark), "tokenize: " + mark + ": there is no text to tokenize\n");
    EXPECT_EQ(errors(to_out + "--tokenizer bpe " + text),
              "tokenize: --tokenizer bpe; expected gpt2|gpt2-eot|byte|FILE\n");
    EXPECT_EQ(errors(to_out + "--val-fraction 1 " + text),
              "tokenize: --val-fraction 1; expected a number from 0 to 0.9999999\n");
    EXPECT_EQ(errors(to_out + "--val-fraction nan " + text),
              "tokenize: --val-fraction nan; expected a number from 0 to 0.9999999\n");
    EXPECT_EQ(errors(to_out + "--val-fraction 0.99 " + text),
              "tokenize: --val-fraction 0.99: is so large that nothing is left to train on\n");
    EXPECT_TRUE(says(errors(to_out + "--val-fraction 0.1x " + text), "0.1x"));
    EXPECT_TRUE(says(errors(to_out + "--shards 3 " + text), "--shards"));
    EXPECT_TRUE(says(errors(text), "--out is required"));
    EXPECT_TRUE(says(errors(to_out), "FILE is required"));
    EXPECT_TRUE(says(errors("--out '' " + text), "--out has an empty value"));
    EXPECT_TRUE(says(errors(to_out + "''"), "a word of the command line is empty"));
    EXPECT_TRUE(
        says(errors(to_out + "--stream --val-tokens -1"), "--val-tokens -1; expected a whole number from 0"));
    EXPECT_TRUE(says(errors("--out " + text + " " + text), "is not a folder"));
    EXPECT_TRUE(says(errors("--out /proc/none " + text), "the folder cannot be made"));
}

TEST(TokenizeProgram, RefusesAFolderThatHoldsShards) {
    const TemporaryFolder folder;
    const std::string text = folder.write("a.txt", "some text"), out = folder / "out";
    ASSERT_TRUE(succeeded(tokenize("--out " + out + " " + text)));
    EXPECT_EQ(refusal_of(tokenize("--tokenizer byte --out " + out + " " + text)),
              "tokenize: --out " + out +
                  ": already holds train_000000.bin; choose another folder or remove its shards\n");
    EXPECT_EQ(tokens_in(out + "/train_000000.bin"), make_tokenizer("gpt2")->encode("some text"));
}

// A limit on the size of files stops the program like a full disk.
TEST(TokenizeProgram, AFullDiskIsOneLineExitCodeOneAndNoOutput) {
    const TemporaryFolder folder;
    const std::string out = folder / "new/out", text = data_directory() + "/tinyshakespeare.txt";
    const ProgramResult result = tokenize("--val-fraction 0.5 --out " + out + " " + text, "ulimit -f 100");
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.errors, "tokenize: " + out + "/train_000000.bin: cannot be written: File too large\n");
    EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

TEST(TokenizeProgram, ANameInSquareBracketsWasTakenForAList) {
    const TemporaryFolder folder;
    folder.write("[1]", "one");
    folder.write("1", "another");
    ASSERT_TRUE(succeeded(tokenize("--tokenizer byte --out out '[1]'", "cd " + folder.path())));
    EXPECT_EQ(make_tokenizer("byte")->decode(tokens_in(folder / "out/train_000000.bin")), "one");
}

TEST(TokenizeProgram, AResultThatCannotBeWrittenIsAnError) {
    const TemporaryFolder folder;
    const ProgramResult result =
        run_program("/bin/sh", fmt::format("-c \"'{}' --tokenizer byte --out '{}' '{}' >/dev/full\"",
                                           TOKENIZE_PROGRAM, folder / "out", folder.write("a", "one")));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.errors, "tokenize: the result cannot be written to standard output\n");
}

TEST(TokenizeProgram, Utf16IsRefusedBeforeAnythingIsTokenized) {
    const TemporaryFolder folder;
    const std::string text = folder.write("a.txt", "some text"),
                      wide = folder.write("b.txt", std::string("\xFF\xFEh\0i\0\n\0", 8));
    EXPECT_EQ(refusal_of(tokenize("--out " + folder / "new/out" + " " + text + " " + wide)),
              "tokenize: " + wide +
                  ": is UTF-16 text; expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8 '" + wide +
                  "' > utf8.txt\n");
    EXPECT_FALSE(std::filesystem::exists(folder / "new"));
    // The command in the message works.
    ASSERT_EQ(std::system(
                  ("cd '" + folder.path() + "'; iconv -f UTF-16 -t UTF-8 '" + wide + "' > utf8.txt").c_str()),
              0);
    EXPECT_EQ(read_file(folder / "utf8.txt"), "hi\n");
}

TEST(TokenizeProgram, TwoAtOnceDoNotMixTheirShards) {
    const TemporaryFolder folder;
    const std::string text = folder.write("a.txt", "some text"), out = folder / "out";
    std::filesystem::create_directory(out);
    {
        const FolderLock other(out, "writing shards");
        EXPECT_EQ(refusal_of(tokenize("--out " + out + " " + text)),
                  "tokenize: " + out + ": another process is writing shards there; expected one at a time\n");
    }
    EXPECT_TRUE(succeeded(tokenize("--out " + out + " " + text)));
}

TEST(TokenizeProgram, WhatAKilledOneLeftIsRemoved) {
    const TemporaryFolder folder;
    const std::string text = folder.write("a.txt", "some text");
    folder.write("train_000000.bin.tmp-0123abcd", "half a shard");
    folder.write("notes.tmp-0123abcd", "of somebody else");
    ASSERT_TRUE(succeeded(tokenize("--out " + folder.path() + " " + text)));
    EXPECT_FALSE(std::filesystem::exists(folder / "train_000000.bin.tmp-0123abcd"));
    EXPECT_EQ(folder.files().size(), 4u) << "the text, somebody's notes, the shard and its tokenizer's name";
}

TEST(TokenizeProgram, AFileNameThatIsNotUtf8Works) {
    const TemporaryFolder folder;
    const std::string name = "\xff\xfe", text = folder.write(name + ".txt", "some text"), out = folder / name;
    EXPECT_TRUE(succeeded(tokenize("--out '" + out + "' '" + text + "'")));
    EXPECT_EQ(tokens_in(out + "/train_000000.bin"), make_tokenizer("gpt2")->encode("some text"));
    const ProgramResult again = tokenize("--out '" + out + "' '" + text + "'");
    EXPECT_EQ(again.errors,
              "tokenize: --out " + folder / "\uFFFD\uFFFD" +
                  ": already holds train_000000.bin; choose another folder or remove its shards\n");
}
