// Values of --train-data and --val-data: which files they stand for, how texts become one stream of tokens,
// what is held out, cached, refused, and said.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "environment.h"
#include "kernels/simt/target.h"
#include "temporary_folder.h"
#include "trainer/data/data_files.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/input_files.h"
#include "write_shard.h"

namespace fs = std::filesystem;

namespace {

const std::unique_ptr<Tokenizer> byte_tokenizer = make_tokenizer("byte");
Tokenizer& bytes = *byte_tokenizer;

struct Notes {
    std::vector<std::string> lines;
    DataOptions options = [this] {
        DataOptions options;
        // Lines of progress are left out: they come or not, as fast as the machine is at the moment.
        options.note = [this](const std::string& line) {
            if (line.find(": looking at file ") == std::string::npos) lines.push_back(line);
        };
        options.note_seconds = 3600;
        return options;
    }();
};

// A folder of texts, and a folder for caches, which texts of any size get.
struct CachedTexts {
    TemporaryFolder folder, caches;
    Variable home{"XDG_CACHE_HOME", caches.path()};
    Notes notes;
    CachedTexts() { notes.options.cache_bytes = 0; }

    // The names of the cached shards.
    std::vector<std::string> cached() const {
        std::vector<std::string> names;
        if (fs::exists(caches / "flatgpt"))
            for (const auto& entry : fs::directory_iterator(caches / "flatgpt"))
                if (entry.path().extension() != ".json") names.push_back(entry.path().filename());
        std::sort(names.begin(), names.end());
        return names;
    }
    std::string path_of(const std::string& name) const { return caches / ("flatgpt/" + name); }
};

std::string text_of(const std::vector<TokenShard>& shards, const Tokenizer& tokenizer = bytes) {
    std::string text;
    for (const TokenShard& shard : shards) text += tokenizer.decode(shard.tokens());
    return text;
}

std::string split_of(const std::vector<std::string>& values, const DataOptions& options = {}) {
    return text_of(open_split(values, bytes, options));
}

// "what is trained on|what is validated on"
std::string splits_of(const std::vector<std::string>& train, const std::vector<std::string>& val,
                      const DataOptions& options = {}) {
    const DataSplits data = open_data(train, val, bytes, options);
    return text_of(data.train) + "|" + text_of(data.val);
}

}  // namespace

TEST(DataFiles, APatternIsTakenInTheOrderOfTheNames) {
    const TemporaryFolder folder;
    for (const char* name : {"2", "0", "1"})
        write_shard(folder, fmt::format("shard_{}.bin", name), {Token(*name)});
    EXPECT_EQ(splits_of({folder / "shard_*.bin"}, {}), "012|");
    EXPECT_TRUE(open_data({folder / "shard_*.bin"}, {}, bytes).val.empty());
}

TEST(DataFiles, AListKeepsItsOrderAndItsRepeats) {
    TemporaryFolder folder;
    Notes notes;
    const std::string web = write_shard(folder, "web.bin", {'w'}),
                      domain = write_shard(folder, "domain.bin", {'d'}), text = folder.write("a.txt", "text");
    EXPECT_EQ(splits_of({web, domain}, {}), "wd|");
    EXPECT_EQ(splits_of({domain, web}, {}), "dw|");
    EXPECT_EQ(splits_of({folder / "{web,domain}.bin"}, {}), "wd|");
    EXPECT_EQ(split_of({text, web, text}), "texttextw");  // texts are one stream, where the first one stands
    EXPECT_EQ(splits_of({web, domain, domain}, {}, notes.options), "wdd|");
    EXPECT_EQ(notes.lines,
              std::vector{"given more than once, and counted as often: " + domain + " (2 times)"});
    // the rules of older versions
    notes.options.sorted_once = true;
    EXPECT_EQ(splits_of({web, domain, domain}, {}, notes.options), "dw|");
}

TEST(DataFiles, ManyShortTextsAreTrainedOnLikeALongOne) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "notes");
    std::string all;
    for (int i = 100; i < 200; i++) {
        const std::string text = fmt::format("{} is a short text. ", i);
        folder.write(fmt::format("notes/{}.txt", i), text);
        all += text;
    }
    const size_t cut = all.size() * 9 / 10;
    const DataSplits data = open_data({folder / "notes"}, {}, bytes, {.train_T = 512, .val_T = 64});
    EXPECT_EQ(text_of(data.train), all.substr(0, cut));
    EXPECT_EQ(text_of(data.val), all.substr(cut));
    EXPECT_EQ(data.train_texts, 100u);
    const TokenWindows windows(data.train, 512, 256);
    EXPECT_EQ(windows.count(), (cut - 1) / 512);
}

TEST(DataFiles, TheEndOfTextStandsBetweenTextsAndNotAroundThem) {
    const TemporaryFolder folder;
    const auto gpt2 = make_tokenizer("gpt2");
    for (const char* name : {"empty", "a", "b", "nothing", "z"})
        folder.write(std::string(name) + ".txt", name == std::string("empty") || name[0] == 'n' ? "" : "tea");
    const std::vector<TokenShard> split = open_split({folder / "*.txt"}, *gpt2);
    ASSERT_EQ(split.size(), 1u);
    // "tea" is 660 64 in GPT-2's vocabulary
    const std::vector<Token> expected = {660, 64, 50256, 660, 64, 50256, 660, 64};
    EXPECT_EQ(split[0].tokens(), expected);
}

TEST(DataFiles, AnEndOfTextThatIsTakenAsOrdinaryTextIsSaid) {
    const TemporaryFolder folder;
    const std::string path = folder.write("a.txt", "one<|endoftext|>two<|endoftext|>");
    for (const auto& [tokenizer, tokens, lines] :
         {std::tuple("gpt2", 16, 1), std::tuple("gpt2-eot", 4, 0), std::tuple("byte", 32, 0)}) {
        Notes notes;
        EXPECT_EQ(open_split({path}, *make_tokenizer(tokenizer), notes.options)[0].size(), size_t(tokens))
            << tokenizer;
        ASSERT_EQ(notes.lines.size(), size_t(lines)) << tokenizer;
        for (const std::string& line : notes.lines) EXPECT_TRUE(says(line, "gpt2-eot"));
    }
}

// A tokenizer with a number past 16 bits.
std::unique_ptr<Tokenizer> wide_tokenizer(const TemporaryFolder& folder) {
    nlohmann::json file = nlohmann::json::parse(read_file(PROJECT_ROOT "/test/reference/bpe/plain.json"));
    file["model"]["vocab"]["zq"] = 70'000;
    file["model"]["merges"].insert(file["model"]["merges"].begin(), {{"z", "q"}});
    return make_tokenizer(folder.write("tokenizer.json", file.dump()));
}

TEST(DataFiles, ALargeVocabularyHas32BitsATokenInTheCache) {
    CachedTexts texts;
    const std::unique_ptr<Tokenizer> wide = wide_tokenizer(texts.folder);
    const std::string path = texts.folder.write("a.txt", "to zq or not");
    for (int run = 0; run < 2; run++) {
        const std::vector<TokenShard> shards = open_split({path}, *wide, texts.notes.options);
        ASSERT_EQ(shards.size(), 1u);
        EXPECT_EQ(shards[0].token_bytes(), 4u);
        EXPECT_EQ(shards[0].tokens(), wide->encode("to zq or not"));
        EXPECT_EQ(std::ranges::count(shards[0].tokens(), 70'000u), 1);
    }
    ASSERT_EQ(texts.cached().size(), 1u);
    EXPECT_EQ(fs::file_size(texts.path_of(texts.cached()[0])),
              1024 + 4 * wide->encode("to zq or not").size());
}

TEST(DataFiles, AShardOf16BitsIsRefusedIfTheTokenizerNeeds32) {
    const TemporaryFolder folder;
    const std::unique_ptr<Tokenizer> wide = wide_tokenizer(folder);
    const std::string shard = write_shard(folder, "narrow.bin", {1, 2, 3});
    EXPECT_TRUE(says(message_of<UsageError>([&] { open_split({shard}, *wide); }),
                     shard + ": its tokens have 16 bits, but the 70001 tokens of --tokenizer bpe-"));
    EXPECT_EQ(open_split({shard}, bytes).size(), 1u);
}

TEST(DataFiles, AStreamIsCutIntoShards) {
    const TemporaryFolder folder;
    CachedTexts cached;
    for (const char* name : {"a", "b", "c"}) cached.folder.write(name, "0123456");
    for (const size_t cache_bytes : {size_t{0}, SIZE_MAX}) {
        for (int run = 0; run < 2; run++) {
            DataOptions options;
            options.shard_tokens = 8;
            options.cache_bytes = cache_bytes;
            const auto split = open_split({cached.folder / "*"}, bytes, options);
            ASSERT_EQ(split.size(), 3u);
            EXPECT_EQ(split[0].size(), 8u);
            EXPECT_EQ(split[2].size(), 5u);
            EXPECT_EQ(text_of(split), "012345601234560123456");
        }
    }
    EXPECT_EQ(cached.cached().size(), 3u);
}

TEST(DataFiles, ATextIsATextWhateverItsName) {
    const TemporaryFolder folder;
    const std::string text = "text of nine words, held out by its last tenth";
    for (const char* name : {"notes.md", "README", "page.html", "upper.TXT"}) {
        const std::string path = folder.write(name, text);
        EXPECT_EQ(split_of({path}), text) << name;
        EXPECT_EQ(open_data({path}, {}, bytes).val.size(), 1u) << name;
    }
    // A file without the usual ending is a shard, too, but one called .txt is read as a text.
    const std::string tokens = read_file(write_shard(folder, "tokens.bin", std::vector<Token>(20)));
    EXPECT_EQ(open_split({folder.write("tokens", tokens)}, bytes)[0].size(), 20u);
    EXPECT_EQ(open_split({folder.write("tokens.txt", tokens)}, bytes)[0].size(), tokens.size());
    const std::string picture =
        folder.write("picture.png", std::string("\x89PNG\r\n\x1A\n\0\0\0\rIHDR\0\0\1\0", 20));
    EXPECT_EQ(
        message_of<UsageError>([&] { open_data({picture}, {}, bytes); }),
        picture +
            ": is neither text nor a token shard; expected a file of UTF-8 text, or what tokenize wrote");
}

TEST(DataFiles, AFolderIsTheTextsInIt) {
    const TemporaryFolder folder;
    for (const char* name : {"docs", "docs/deep", "docs/.git", "other"}) fs::create_directory(folder / name);
    folder.write("docs/a.md", "one, ");
    folder.write("docs/deep/b", "two, ");
    folder.write("docs/z.txt", "three");
    folder.write("docs/.git/config", "hidden");
    folder.write("docs/.hidden", "hidden");
    folder.write("docs/model.bin", std::string(2000, '\1'));
    folder.write("docs/picture.png", std::string(100, '\0'));
    folder.write("docs/a.txt.byte.cache.bin", "\x88\xD8\x34\x01 a cache of an older version");
    folder.write("docs/README.md", "!");
    folder.write("other/far.txt", "far");
    ASSERT_EQ(mkfifo((folder / "docs/pipe").c_str(), 0600), 0);
    fs::create_symlink(folder / "other", folder / "docs/link");
    fs::create_symlink(folder / "nowhere", folder / "docs/lost");
    fs::create_symlink(folder / "docs/z.txt", folder / "docs/zz.txt");
    Notes notes;
    const std::string docs = folder / "docs";
    EXPECT_EQ(split_of({docs}, notes.options), "!one, two, three");
    EXPECT_EQ(
        notes.lines,
        (std::vector{
            docs + ": 3 of its files are neither text nor token shard, and left out: " + docs +
                "/pipe and 2 others",
            docs +
                ": 1 link to a folder is not followed; to take the folder too, name it after this "
                "one: " +
                docs + "/link",
            docs + ": 1 link leads nowhere: " + docs + "/lost",
            docs + ": 1 of its files has a second name in the folder, and counts once: " + docs + "/zz.txt",
            docs +
                ": 1 file that describes the folder is taken as texts like the others; to leave them "
                "out, name the others instead of the folder: " +
                docs + "/README.md"}));
    // The command that a note recommends works, and a file that is named beside its folder counts twice.
    EXPECT_EQ(split_of({docs, docs + "/link"}), "!one, two, threefar");
    EXPECT_EQ(split_of({docs, docs + "/a.md"}), "!one, two, threeone, ");
}

TEST(DataFiles, AFolderOfShardsKeepsItsValidationShardsForValidation) {
    const TemporaryFolder folder;
    Notes notes;
    const std::string train = write_shard(folder, "fineweb_train_000001.bin", {'t'}),
                      val = write_shard(folder, "fineweb_val_000000.bin", {'v'}), all = folder.path();
    folder.write("README.md", "the data's description");
    folder.write("fineweb_shards.json", "{\"tokenizer\": \"gpt2\"}");
    EXPECT_EQ(splits_of({all}, {}, notes.options), "t|v");
    EXPECT_EQ(notes.lines,
              (std::vector{all +
                               ": 1 text is left out beside the token shards; to train on texts too, name "
                               "them after the folder: " +
                               all + "/README.md",
                           all + ": 1 of its files is for validation, as named: " + val}));
    EXPECT_EQ(splits_of({all, folder / "README.md"}, {}), "tthe data's description|v");
    EXPECT_EQ(splits_of({all}, {all}), "t|v");
    EXPECT_EQ(splits_of({all}, {val}), "t|v");
    EXPECT_EQ(splits_of({all + "/*.bin"}, {all + "/*val*"}), "t|v");
    EXPECT_EQ(splits_of({all + "/*.bin"}, {}), "tv|");
    EXPECT_EQ(split_of({all}), "v");  // evaluate_gpt2 --val-data
    // A single name is meant as it is.
    notes.lines.clear();
    EXPECT_EQ(splits_of({train, val}, {val}, notes.options), "tv|v");
    EXPECT_EQ(notes.lines, std::vector{val + ": is trained on and validated on, so the validation loss says "
                                             "nothing about other texts"});
    // the rules of older versions
    EXPECT_EQ(splits_of({folder / "*.bin"}, {val}, {.sorted_once = true}), "tv|v");
    DataOptions older;
    older.sorted_once = true;
    EXPECT_EQ(splits_of({all}, {}, older), "the data's descriptiontv|");
    // A split for tests is no part of either.
    const std::string test = write_shard(folder, "fineweb_test_000000.bin", {'x'});
    EXPECT_EQ(splits_of({all}, {}), "t|v");
    EXPECT_EQ(split_of({all}), "v");
    fs::remove(test);
    // Without training shards, the name means nothing.
    fs::remove(train);
    fs::remove(folder / "README.md");
    EXPECT_EQ(splits_of({all}, {}), "v|");
    EXPECT_EQ(message_of<UsageError>([&] { open_data({all}, {val}, bytes); }),
              all + ": --val-data names all files of the folder; expected others to train on");
}

TEST(DataFiles, TextsAreDividedByTheirNamesLikeShards) {
    const TemporaryFolder folder;
    for (const char* name : {"wiki.train.raw", "wiki.valid.raw", "wiki.test.raw", "more.raw"})
        folder.write(name, std::string(name).substr(5, 2));
    EXPECT_EQ(splits_of({folder.path()}, {}), "ratr|va");  // more.raw has no split in its name
    EXPECT_EQ(splits_of({folder / "*"}, {folder / "wiki.valid.raw"}), "ratetr|va");
    for (const char* name : {"train", "test"}) folder.write(std::string(name) + "_val.txt", "both");
    EXPECT_EQ(splits_of({folder.path()}, {}), "rabothbothtr|va");
}

TEST(DataFiles, OrdinaryWordsInTheNamesOfTextsAreNoSplits) {
    const TemporaryFolder folder;
    for (const char* name : {"train-schedule.txt", "dev-diary.txt", "blood-test.txt", "training.md"})
        folder.write(name, std::string(name).substr(0, 1));
    EXPECT_EQ(split_of({folder.path()}), "bdtt");
    for (const char* name : {"TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"})
        folder.write(name, std::string(name).substr(19, 1));
    EXPECT_EQ(splits_of({folder.path()}, {}), "tbdtt|v");
    folder.write("valid-00000-of-00004.txt", "0");  // beside training.md
    EXPECT_EQ(splits_of({folder.path()}, {}), "tbdtt|v0");
}

TEST(DataFiles, FoldersNamedForSplitsDivideTheirFiles) {
    const TemporaryFolder folder;
    for (const char* name : {"data", "data/train", "data/train/more", "data/val", "data/test"})
        fs::create_directory(folder / name);
    for (const char* name : {"data/train/blood-test.txt", "data/train/more/a.txt", "data/val/a.txt"})
        folder.write(name, std::string(name).substr(5, 2));
    folder.write("data/test/a.txt", "te");
    EXPECT_EQ(splits_of({folder / "data"}, {}), "trtr|va");
    EXPECT_EQ(split_of({folder / "data"}), "va");
    // Folders above the one that is named mean nothing, and a folder called test alone is one of texts.
    EXPECT_EQ(split_of({folder / "data/val"}), "va");
    fs::remove_all(folder / "data/train");
    EXPECT_EQ(split_of({folder / "data"}), "teva");
}

// The words of folders and of names divide a data set together. If both say a split, the name's counts.
TEST(DataFiles, SplitsOfFoldersAndOfNamesAreAlike) {
    const TemporaryFolder folder;
    const auto splits = [&](const std::vector<std::string>& names) {
        const TemporaryFolder texts;
        for (const std::string& name : names) {
            fs::create_directories(fs::path(texts / ("data/" + name)).parent_path());
            texts.write("data/" + name, std::string(1, static_cast<char>('a' + (&name - &names[0]))));
        }
        return splits_of({texts / "data"}, {});
    };
    EXPECT_EQ(splits({"train.txt", "val/one.txt", "test/one.txt"}), "a|b");
    EXPECT_EQ(splits({"train/one.txt", "val.txt", "test.txt"}), "a|b");
    EXPECT_EQ(splits({"training/train.txt", "training/val.txt"}), "a|b");
    EXPECT_EQ(splits({"dev/train.txt", "dev/val.txt"}), "a|b");
    EXPECT_EQ(splits({"train/a.txt", "train/val.txt", "train/test/b.txt"}), "a|b");
    EXPECT_EQ(splits({"wiki train.txt", "wiki val.txt"}), "a|b");
    EXPECT_EQ(splits({"train_alpha", "val_beta", "z"}), "ab|c");  // not alike
    write_shard(folder, "train_000000.bin", {'t'});
    fs::create_directory(folder / "val");
    write_shard(folder, "val/x_000000.bin", {'v'});
    EXPECT_EQ(splits_of({folder.path()}, {}), "t|v");
}

TEST(DataFiles, AFoldersValidationFilesAreNotLostInSilence) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "data");
    folder.write("data/train.txt", "t");
    const std::string val = folder.write("data/val.txt", "v"), other = folder.write("other.txt", "o"),
                      data = folder / "data";
    Notes notes;
    EXPECT_EQ(splits_of({data, val}, {}, notes.options), "tv|v");
    EXPECT_EQ(notes.lines, (std::vector{data + ": 1 of its files is for validation, as named: " + val,
                                        val + ": is trained on and validated on, so the validation loss says "
                                              "nothing about other texts"}));
    notes.lines.clear();
    EXPECT_EQ(splits_of({data}, {other}, notes.options), "t|o");
    EXPECT_EQ(notes.lines,
              std::vector{data +
                          ": 1 of its files is for validation, as named, and left out, because --val-data "
                          "names others: " +
                          val});
}

TEST(DataFiles, APatternThatMatchesFilesForValidationSaysSo) {
    const TemporaryFolder folder;
    Notes notes;
    for (const char* name : {"train_0.bin", "train_1.bin", "val_0.bin"})
        write_shard(folder, name, {Token(*name)});
    const std::string pattern = folder / "*.bin",
                      said =
                          "'" + pattern +
                          "' matches files that are named for validation or tests, and they are trained on "
                          "like the others: " +
                          folder / "val_0.bin" +
                          "; to have them held out, name the folder instead of the pattern";
    EXPECT_EQ(splits_of({pattern}, {}, notes.options), "ttv|");
    EXPECT_EQ(notes.lines, std::vector{said});
    notes.lines.clear();
    EXPECT_EQ(splits_of({folder / "train*"}, {}, notes.options), "tt|");
    EXPECT_EQ(split_of({pattern}, notes.options), "ttv");
    EXPECT_TRUE(notes.lines.empty());
}

TEST(DataFiles, AFileOfTheValidationDataIsLeftOutOfTrainingWhereAFolderOrPatternBringsIt) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "texts");
    folder.write("texts/a.txt", "one, ");
    const std::string last = folder.write("texts/b.txt", "two"), texts = folder / "texts";
    fs::create_hard_link(last, folder / "another_name.txt");
    Notes notes;
    EXPECT_EQ(splits_of({texts}, {last}, notes.options), "one, |two");
    EXPECT_EQ(splits_of({texts + "/*"}, {last}, notes.options), "one, |two");
    EXPECT_EQ(splits_of({texts}, {folder / "another_name.txt"}), "one, |two");
    EXPECT_EQ(notes.lines,
              (std::vector{texts + ": 1 of its files is named by --val-data, and not trained on: " + last,
                           last + ": is not trained on, because --val-data names it"}));
    EXPECT_EQ(message_of<UsageError>([&] { open_data({texts + "/b*"}, {last}, bytes); }),
              "'" + texts + "/b*' matches only files that --val-data names; expected others");
}

TEST(DataFiles, NamesWithSignsOfPatternsAreNames) {
    const TemporaryFolder folder;
    std::vector<std::string> values;
    for (const char* name : {"a,b{c}.md", "d[1]*~.md", "e\\f.md", "Chapter [1].txt"})
        values.push_back(folder.write(name, name));
    EXPECT_EQ(split_of(values), "a,b{c}.mdd[1]*~.mde\\f.mdChapter [1].txt");
    EXPECT_EQ(message_of<UsageError>([&] {
                  open_split({values[0], folder / "no.bin"}, bytes);
              }),
              "no file matches '" + folder / "no.bin" + "'; expected token shards or texts");
}

TEST(DataFiles, ALoneTextHoldsOutItsLastTenth) {
    const TemporaryFolder folder;
    std::string text;
    for (int i = 0; i < 1000; i++) text += std::to_string(i) + ' ';
    const std::string path = folder.write("a.txt", text);
    const size_t cut = text.size() * 9 / 10;
    EXPECT_EQ(splits_of({path}, {}), text.substr(0, cut) + "|" + text.substr(cut));
    EXPECT_EQ(splits_of({path}, {folder.write("b.txt", "other")}), text + "|other");
    EXPECT_EQ(splits_of({path, write_shard(folder, "s.bin", {'s'})}, {}), text + "s|");
    // 9 of 10 bytes would cut the last character in two.
    EXPECT_EQ(splits_of({folder.write("c.txt", "1234567\xE2\x82\xAC")}, {}), "1234567|\xE2\x82\xAC");
}

TEST(DataFiles, SeveralTextsHoldOutTheLastTenthOfAllOfThem) {
    const TemporaryFolder folder;
    const auto split = [&](const std::vector<size_t>& sizes) {
        const std::string texts = folder / fmt::format("{}", fmt::join(sizes, "-"));
        fs::create_directory(texts);
        for (size_t i = 0; i < sizes.size(); i++)
            std::ofstream(fmt::format("{}/{}.md", texts, i))
                << std::string(sizes[i], static_cast<char>('a' + i));
        return splits_of({texts}, {});
    };
    EXPECT_EQ(split({10, 9, 1}), std::string(10, 'a') + std::string(8, 'b') + "|bc");
    EXPECT_EQ(split({18, 2}), std::string(18, 'a') + "|bb");
    EXPECT_EQ(split({0, 5, 0, 5}), "bbbbbdddd|d");
    // Nine tenths end within the second of these characters.
    EXPECT_EQ(splits_of({folder.write("p", "12345€€"), folder.write("q", "z")}, {}), "12345€|€z");
    const std::string empty = folder.write("x", "");
    EXPECT_EQ(message_of<UsageError>([&] {
                  open_data({empty, folder.write("y", "")}, {}, bytes);
              }),
              empty + ": there is too little text to hold out a tenth of it");
}

TEST(DataFiles, LargeTextsAreTokenizedOnceAndAgainWhenOneChanges) {
    CachedTexts texts;
    const auto gpt2 = make_tokenizer("gpt2");
    texts.folder.write("a.txt", "some words of a text");
    texts.folder.write("b.txt", "and of another");
    const std::string pattern = texts.folder / "*.txt",
                      all = "some words of a text<|endoftext|>and of another";
    const auto read = [&](Tokenizer& tokenizer) {
        return text_of(open_split({pattern}, tokenizer, texts.notes.options), tokenizer);
    };
    EXPECT_EQ(read(*gpt2), all);
    ASSERT_EQ(texts.cached().size(), 1u);
    EXPECT_EQ(texts.folder.files().size(), 2u);  // nothing beside the texts
    // The cache is read and not made again: its last token is changed under it.
    const std::string cache = texts.path_of(texts.cached()[0]);
    std::string changed = read_file(cache);
    changed[changed.size() - 2] ^= 1;
    std::ofstream(cache, std::ios::binary) << changed;
    EXPECT_NE(read(*gpt2), all);
    EXPECT_EQ(read(bytes), "some words of a textand of another");  // another tokenizer has another cache
    EXPECT_EQ(texts.cached().size(), 2u);

    texts.folder.write("b.txt", "and of anothex");  // the same size, perhaps the same second
    EXPECT_EQ(read(*gpt2), "some words of a text<|endoftext|>and of anothex");
    // The same bytes, cut elsewhere, are other texts.
    texts.folder.write("a.txt", "some words of a texta");
    texts.folder.write("b.txt", "nd of anothex");
    EXPECT_EQ(read(*gpt2), "some words of a texta<|endoftext|>nd of anothex");
    std::ofstream(cache, std::ios::binary) << "damaged";
    for (int run = 0; run < 2; run++)
        EXPECT_EQ(read(*gpt2), "some words of a texta<|endoftext|>nd of anothex");
    EXPECT_EQ(texts.cached().size(), 2u);
    EXPECT_TRUE(texts.notes.lines.empty());
}

TEST(DataFiles, SmallTextsLeaveNoCache) {
    CachedTexts texts;
    EXPECT_EQ(split_of({texts.folder.write("a.txt", "some words")}), "some words");
    EXPECT_TRUE(texts.cached().empty());
}

// A killed process may have committed all shards of a cache but the first.
TEST(DataFiles, AHalfWrittenCacheIsMadeAgain) {
    CachedTexts texts;
    texts.notes.options.shard_tokens = 4;
    const std::string path = texts.folder.write("a.txt", "0123456789");
    EXPECT_EQ(split_of({path}, texts.notes.options), "0123456789");
    const std::vector<std::string> names = texts.cached();
    ASSERT_EQ(names.size(), 3u);
    texts.folder.write("a.txt", "abcdefgh");
    EXPECT_EQ(split_of({path}, texts.notes.options), "abcdefgh");  // the old third shard is not part of it
    EXPECT_EQ(split_of({path}, texts.notes.options), "abcdefgh");
    fs::remove(texts.path_of(names[0]));
    EXPECT_EQ(split_of({path}, texts.notes.options), "abcdefgh");
    EXPECT_TRUE(fs::exists(texts.path_of(names[0])));
}

TEST(DataFiles, RefusesWhatItCannotRead) {
    const TemporaryFolder folder;
    const auto message = [&](const std::string& train, const std::vector<std::string>& val) {
        return message_of<UsageError>([&] { open_data({train}, val, bytes); });
    };
    EXPECT_EQ(message(folder / "*.bin", {}),
              "no file matches '" + folder / "*.bin" + "'; expected token shards or texts");
    const std::string text = folder.write("a.txt", "a text");
    EXPECT_EQ(message(text, {folder / "none"}),
              "no file matches '" + folder / "none" + "'; expected token shards or texts");
    fs::create_directory(folder / "empty");
    EXPECT_EQ(message(folder / "empty", {}),
              folder / "empty" + ": the folder holds no token shards or texts");
    EXPECT_EQ(message(folder.write("b.bin", "no shard"), {}),
              folder / "b.bin" + ": 8 bytes are too short for a token shard, whose header alone has 1024");
    EXPECT_EQ(message(folder.write("empty.txt", ""), {}),
              folder / "empty.txt" + ": there is too little text to hold out a tenth of it");
    const DataSplits data = open_data({text}, {}, bytes);
    EXPECT_EQ(message_of<UsageError>([&] { ValidationLoader(data.val, 1, 8, 256); }),
              text +
                  " (its last tenth): 1 tokens are too few for a sequence of 8 and its next token; use a "
                  "longer text or a shorter sequence");
    EXPECT_EQ(message_of<UsageError>([&] { open_split({text}, *make_tokenizer("none")); }),
              text +
                  ": is text, which --tokenizer none cannot tokenize; expected token shards, or another "
                  "--tokenizer");
}

TEST(DataFiles, TheFolderOfAModelOrARunIsRefused) {
    const TemporaryFolder folder;
    for (const char* name : {"model", "run", "run/checkpoints"}) fs::create_directory(folder / name);
    folder.write("model/config.json", "{}");
    EXPECT_EQ(split_of({folder / "model"}), "{}");  // a text like any other
    folder.write("run/metrics.jsonl", "{}");
    for (const char* weights : {"model.safetensors", "pytorch_model.bin"}) {
        const std::string file = folder.write(std::string("model/") + weights, "");
        EXPECT_THROW(open_split({folder / "model"}, bytes), UsageError);
        fs::remove(file);
    }
    folder.write("model/model.safetensors.index.json", "");
    for (const char* name : {"model", "run"})
        EXPECT_EQ(message_of<UsageError>([&] { open_split({folder / name}, bytes); }),
                  folder / name + ": is the folder of a " + name + "; expected token shards or texts");
}

// The run that is resumed may have been given its files in another folder.
TEST(DataFiles, ARelativeNameThatIsNotThereIsSaidWithTheFolder) {
    EXPECT_EQ(message_of<UsageError>([] { open_split({"no/such.txt"}, bytes); }),
              "no file matches 'no/such.txt' in " + fs::current_path().string() +
                  "; expected token shards or texts");
}

// A folder's pictures may be pointers of git LFS, but a missing shard or text must not be overlooked.
TEST(DataFiles, PointersOfGitLfsAreNamed) {
    const TemporaryFolder folder;
    const std::string pointer =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 548105171\n";
    folder.write("a.txt", "text");
    folder.write("b.png", pointer);
    EXPECT_EQ(split_of({folder.path()}), "text");
    for (const char* name : {"c.bin", "c.txt"}) {
        const std::string path = folder.write(name, pointer);
        EXPECT_TRUE(says(message_of<UsageError>([&] { open_split({folder.path()}, bytes); }),
                         path + ": is git LFS's pointer to the file"));
        fs::remove(path);
    }
}

TEST(DataFiles, FormatsThatAreNoTextAreRefusedWithTheCommandThatUnpacksThem) {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& name, const std::string& content, const std::string& what) {
        const std::string path = folder.write(name, content);
        EXPECT_EQ(message_of<UsageError>([&] { open_split({path}, bytes); }),
                  path + ": is " + what.substr(0, what.find("; ")) +
                      "; expected a file of UTF-8 text, or what tokenize wrote" +
                      fmt::format(fmt::runtime(what.substr(what.find("; "))), path));
        fs::remove(path);
    };
    refused("paper.pdf", "%PDF-1.7\n", "a PDF document; convert it with: pdftotext '{}' document.txt");
    refused("paper.txt", "%PDF-1.7\n", "a PDF document; convert it with: pdftotext '{}' document.txt");
    refused("a.txt.gz", "\x1F\x8B\x08rest", "compressed by gzip; unpack it with: zcat '{}' > unpacked.txt");
    refused("a.zst", "\x28\xB5\x2F\xFDrest",
            "compressed by zstd; unpack it with: zstdcat '{}' > unpacked.txt");
    for (const char* level : {"1", "9"})
        refused("a.bz2", std::string("BZh") + level + "1AY&SYrest",
                "compressed by bzip2; unpack it with: bzcat '{}' > unpacked.txt");
    refused("a.lz4", "\x04\x22\x4D\x18rest", "compressed by lz4; unpack it with: lz4cat '{}' > unpacked.txt");
    refused("a.docx", "PK\3\4rest",
            "a zip archive or an office document; unpack it, or save the document as plain text");
    refused("train-00000.parquet", "PAR1rest",
            "a Parquet file; write its documents as JSON lines and pipe them into: tokenize --stream --out "
            "shards");
    // In a folder they are left out.
    folder.write("a.txt", "text");
    folder.write("b.pdf", "%PDF-1.7");
    Notes notes;
    EXPECT_EQ(split_of({folder.path()}, notes.options), "text");
    EXPECT_EQ(notes.lines,
              std::vector{folder.path() + ": 1 of its files is neither text nor token shard, and left out: " +
                          folder / "b.pdf"});
}

// The command had a quote too few.
TEST(DataFiles, ACommandForAFileWithAnApostropheCanBeCopied) {
    const TemporaryFolder folder;
    const std::string path = folder.write("it's.gz", "\x1F\x8B\x08rest");
    EXPECT_TRUE(message_of<UsageError>([&] {
                    open_split({path}, bytes);
                }).ends_with("unpack it with: zcat '" + folder.path() + "/it'\\''s.gz' > unpacked.txt"));
}

TEST(DataFiles, ATextWhoseNameIsThatOfAListOrACacheWasPassedOver) {
    const TemporaryFolder folder;
    folder.write("a.txt", "one ");
    folder.write("my_shards.json", "[\"two\"]");
    EXPECT_EQ(split_of({folder.path()}), "one [\"two\"]");
    EXPECT_EQ(split_of({folder / "my_*"}), "[\"two\"]");
    folder.write("my_shards.json", "{\"tokenizer\": \"byte\", \"shards\": []}");
    EXPECT_EQ(split_of({folder.path()}), "one ");
    folder.write("b.cache.bin", "no cache");
    Notes notes;
    EXPECT_EQ(split_of({folder.path()}, notes.options), "one ");
    EXPECT_TRUE(
        says(notes.lines.at(0), "neither text nor token shard, and left out: " + folder / "b.cache.bin"));
}

TEST(DataFiles, AFileThatCannotBeLookedAtWasSaidNotToExist) {
    const TemporaryFolder folder;
    const std::string loop = folder / "loop";
    fs::create_symlink(loop, loop);
    for (const std::string& path : {loop, loop + "/a.txt", loop + "/*"})
        EXPECT_EQ(message_of<UsageError>([&] { open_split({path}, bytes); }),
                  path + ": Too many levels of symbolic links");
}

TEST(DataFiles, ATextThatContainsTextsInAnotherSyntaxIsSaid) {
    const TemporaryFolder folder;
    const std::string lines = folder.write("a.jsonl", "{\"text\": \"one\"}\n"),
                      said = lines +
                             ": is taken as it stands, JSON included; if its documents are meant: "
                             "tokenize --stream --out shards < '" +
                             lines + "', and --train-data shards";
    Notes notes;
    EXPECT_EQ(split_of({lines}, notes.options), "{\"text\": \"one\"}\n");
    EXPECT_EQ(notes.lines, std::vector{said});
    notes.lines.clear();
    folder.write("b.jsonl", "");
    const std::string table = folder.write("t.CSV", "a,b\n");
    split_of({folder.path()}, notes.options);
    EXPECT_EQ(notes.lines,
              (std::vector{table + ": is taken as it stands, separators and quotes included; if "
                                   "only its texts are meant, write them to a .txt file",
                           said, folder.path() + ": the same holds for 1 other files called *.jsonl"}));
}

TEST(DataFiles, AByteOrderMarkIsNoPartOfAText) {
    const TemporaryFolder folder;
    const std::string mark = "\xEF\xBB\xBF", a = folder.write("a.txt", mark + "one, "),
                      b = folder.write("b.txt", mark + "two" + mark), c = folder.write("c.txt", mark);
    Notes notes;
    EXPECT_EQ(split_of({a, b, c}, notes.options), "one, two" + mark);
    EXPECT_EQ(notes.lines,
              std::vector{a + ": the byte order mark at its start is left out; 2 other texts likewise"});
    EXPECT_EQ(splits_of({folder.write("d.txt", mark + "0123456")}, {}), "012345|6");
}

TEST(DataFiles, ATextInAnotherEncodingIsSaid) {
    const TemporaryFolder folder;
    const std::string latin = folder.write("latin.txt", "caf\xE9 au lait"),
                      good = folder.write("a.txt", "café");
    Notes notes;
    EXPECT_EQ(split_of({latin, good}, notes.options), "caf\xE9 au laitcafé");
    EXPECT_EQ(notes.lines,
              std::vector{latin +
                          ": is not UTF-8 (byte 0xe9 at 3), and its bytes are taken as they are; if it "
                          "is in another encoding, convert it, for example: iconv -f WINDOWS-1252 -t "
                          "UTF-8 '" +
                          latin + "' > utf8.txt"});
    // A cache does not swallow it, and the two parts of divided texts do not say it twice.
    const TemporaryFolder caches;
    const Variable home("XDG_CACHE_HOME", caches.path());
    notes.options.cache_bytes = 0;
    const std::vector<std::string> before = notes.lines;
    for (int run = 0; run < 2; run++) {
        notes.lines.clear();
        EXPECT_EQ(splits_of({latin, good}, {}, notes.options), "caf\xE9 au laitcaf|é");
        EXPECT_EQ(notes.lines, before);
    }
    notes.lines.clear();
    const std::string divided = folder.write("divided.txt", "caf\xE9 and more caf\xE9");
    splits_of({divided}, {}, notes.options);
    ASSERT_EQ(notes.lines.size(), 1u);
    EXPECT_FALSE(says(notes.lines[0], "likewise"));
    notes.lines.clear();
    split_of({latin, folder.write("sjis.txt", "\x93\xFA\x96\x7B"), latin}, notes.options);
    ASSERT_EQ(notes.lines.size(), 2u);  // one is about the repeat
    EXPECT_TRUE(says(notes.lines[1], "as they are; 2 other texts likewise; if"));
}

TEST(DataFiles, ATextThatIsTooShortIsRefusedByItsName) {
    CachedTexts texts;
    const TemporaryFolder& folder = texts.folder;
    const std::string path = folder.write("a.txt", std::string(50, 'x')),
                      other = folder.write("b.txt", std::string(8, 'x'));
    const auto refuse = [&](const std::string& train, const std::vector<std::string>& val, int train_T,
                            int val_T, const std::string& name, int tokens, int T) {
        DataOptions options;
        options.cache_bytes = 0;
        options.train_T = train_T;
        options.val_T = val_T;
        EXPECT_EQ(
            message_of<UsageError>([&] { open_data({train}, val, bytes, options); }),
            fmt::format("{}: {} tokens are too few for a sequence of {} and its next token; use a longer "
                        "text or a shorter sequence",
                        name, tokens, T));
    };
    refuse(path, {}, 45, 0, path + " (without its last tenth)", 45, 45);
    refuse(path, {}, 8, 8, path + " (its last tenth)", 5, 8);
    refuse(folder / "*.txt", {}, 52, 0, path + " and 1 other text (without the last tenth of all)", 52, 52);
    refuse(path, {other}, 8, 8, other, 8, 8);

    // without validation its tokens are not needed
    texts.notes.options.train_T = 44;
    EXPECT_EQ(open_data({path}, {}, bytes, texts.notes.options).train[0].size(), 45u);
}

TEST(DataFiles, ALongTextSaysThatItIsBeingTokenized) {
    CachedTexts texts;
    texts.notes.options.note_seconds = 0;
    const std::string path = texts.folder.write("a.txt", std::string(size_t{9} << 20, 'x'));
    split_of({path}, texts.notes.options);
    const std::string rest = " of 9 MiB; this is done once, and kept in " + texts.caches / "flatgpt";
    ASSERT_EQ(texts.notes.lines.size(), 4u);  // the reading, and three pieces of four MiB at most
    EXPECT_EQ(texts.notes.lines[0], "reading text 1 of 1");
    EXPECT_EQ(texts.notes.lines[1], "tokenizing " + path + ": 4" + rest);
    EXPECT_EQ(texts.notes.lines[2], "tokenizing " + path + ": 8" + rest);
    texts.notes.lines.clear();
    split_of({path}, texts.notes.options);
    EXPECT_EQ(texts.notes.lines.size(), 1u);  // the cache is there
}

TEST(DataFiles, TokensStayInMemoryWhereNoCacheCanBeWritten) {
    CachedTexts texts;
    const Variable nowhere("XDG_CACHE_HOME", "/dev/null");
    const std::string lone =
        texts.folder.write("a.txt", "some words, ten for training and one for validation");
    for (int run = 0; run < 2; run++) {
        texts.notes.lines.clear();
        const DataSplits data = open_data({lone}, {}, bytes, texts.notes.options);
        EXPECT_EQ(text_of(data.train) + text_of(data.val),
                  "some words, ten for training and one for validation");
        ASSERT_EQ(texts.notes.lines.size(), 1u);  // not one for every part
        EXPECT_TRUE(says(texts.notes.lines[0], "Not a directory; the tokens of " + lone));
    }
    EXPECT_EQ(texts.folder.files().size(), 1u);
}

TEST(DataFiles, ALongNameIsCutInTheCachesName) {
    CachedTexts texts;
    const std::string path = texts.folder.write(std::string(245, 'n') + ".txt", "some words");
    EXPECT_EQ(split_of({path}, texts.notes.options), "some words");
    EXPECT_EQ(texts.cached().size(), 1u);
    EXPECT_TRUE(texts.notes.lines.empty());
}

// A limit on the size of files stops writing a cache like a full disk.
TEST(DataFiles, ATextIsReadWhenItsCacheFillsTheDisk) {
    CachedTexts texts;
    const std::string text(100'000, 'x'), path = texts.folder.write("a.txt", text);
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small{4096, before.rlim_max};
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::string read = split_of({path}, texts.notes.options);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(read, text);
    ASSERT_EQ(texts.notes.lines.size(), 1u);
    EXPECT_TRUE(says(texts.notes.lines[0], "cannot be written: File too large; the tokens of " + path +
                                               " are kept in memory, and made again by the next run"));
    EXPECT_TRUE(texts.cached().empty());
}

TEST(DataFiles, ATextIsReadWhenItsCacheCannotGetItsName) {
    CachedTexts texts;
    const std::string path = texts.folder.write("a.txt", "some words");
    split_of({path}, texts.notes.options);
    const std::string cache = texts.path_of(texts.cached().at(0));
    fs::remove(cache);
    fs::create_directories(cache + "/taken");
    EXPECT_EQ(split_of({path}, texts.notes.options), "some words");
    ASSERT_EQ(texts.notes.lines.size(), 1u);
    EXPECT_TRUE(says(texts.notes.lines[0], "cannot be given its name"));
    EXPECT_EQ(texts.cached().size(), 1u);
}

TEST(DataFiles, AFolderPassesOverWhatAnotherProcessIsWriting) {
    const TemporaryFolder folder;
    folder.write("a.txt", "one");
    folder.write("train_000000.bin.tmp-89abcdef", "");
    EXPECT_EQ(split_of({folder.path()}), "one");
    EXPECT_EQ(split_of({folder / "*"}), "one");
    folder.write("train.tmp-89abcdeg", " and not one of ours");
    EXPECT_EQ(split_of({folder / "*"}), "one and not one of ours");
}

TEST(DataFiles, WhatAKilledProcessLeftOfACacheIsRemovedWhenItIsOld) {
    CachedTexts texts;
    const std::string path = texts.folder.write("a.txt", "one");
    split_of({path}, texts.notes.options);
    const std::string cache = texts.path_of(texts.cached().at(0));
    fs::remove(cache);
    const std::string left = cache + ".tmp-0123abcd", live = cache + ".tmp-89abcdef",
                      other = texts.path_of("other_000000.bin.tmp-00000000");
    for (const std::string& file : {left, live, other}) std::ofstream(file) << "half";
    const auto old = fs::file_time_type::clock::now() - std::chrono::hours(2);
    for (const std::string& file : {left, other}) fs::last_write_time(file, old);
    split_of({path}, texts.notes.options);
    EXPECT_FALSE(fs::exists(left));
    EXPECT_TRUE(fs::exists(live));
    EXPECT_TRUE(fs::exists(other));
}

// It is asked for after each MiB that is read for the checksum, and after each 4 MiB that are tokenized.
TEST(DataFiles, AnInterruptEndsTheReadingAndTokenizingOfALongText) {
    CachedTexts texts;
    const std::string path = texts.folder.write("a.txt", std::string(size_t{9} << 20, 'x'));
    for (const auto& [times, what] : {std::pair{2, "read"}, {10, "tokenized"}}) {
        int asked = 0;
        texts.notes.options.stop = [&, most = times] { return ++asked > most; };
        EXPECT_EQ(message_of<Error>([&] { open_split({path}, bytes, texts.notes.options); }),
                  "interrupted while " + path + " was being " + what);
        EXPECT_TRUE(texts.cached().empty());
        EXPECT_LE(asked, times + 2);
    }
}

// Words longer than one or two of the pieces of 4 MiB in which a text is read: letters and white space, and
// in a checked build, which takes ten seconds to merge a MiB, a character of which no two bytes merge.
TEST(DataFiles, AWordMayBeLongerThanThePiecesOfAText) {
    const TemporaryFolder folder;
    const auto gpt2 = make_tokenizer("gpt2");
    std::vector<std::pair<std::string, size_t>> words = {{"x", 9}, {" ", 5}, {"\n", 5}};
    if (simt::checked) words = {{"\U0010FFFF", 5}};
    for (const auto& [repeated, mib] : words) {
        std::string text = "a b";
        while (text.size() < mib << 20) text += repeated;
        text += " c";
        const std::vector<Token> tokens = open_split({folder.write("a.txt", text)}, *gpt2)[0].tokens();
        EXPECT_TRUE(tokens == gpt2->encode(text)) << testing::PrintToString(repeated);
    }
}

// Twenty thousand texts need neither as many open files nor as many mappings at once.
TEST(DataFiles, TwentyThousandTextsAreOneStream) {
    const TemporaryFolder folder;
    for (int i = 0; i < 20'000; i++) folder.write(fmt::format("{:05}", i), fmt::format("{} ", i));
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit few{64, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const DataSplits data = open_data({folder.path()}, {}, bytes);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    std::string all;
    for (int i = 0; i < 20'000; i++) all += fmt::format("{} ", i);
    EXPECT_EQ(text_of(data.train) + text_of(data.val), all);
    EXPECT_EQ(describe_data({folder.path()}, {}, {}), fmt::format("20000 texts of {} bytes", all.size()));
}

// As iconv writes it, for ASCII; big-endian on request.
static std::string utf16(const std::string& text, bool big = false) {
    std::string wide;
    for (const char character : text)
        wide += big ? std::string{'\0', character} : std::string{character, '\0'};
    return wide;
}

TEST(DataFiles, Utf16IsRefusedWithTheCommandThatConvertsIt) {
    const TemporaryFolder folder;
    const std::string text = "First Citizen:\nBefore we proceed any further, hear me speak.\n";
    folder.write("a.txt", text);
    const auto refused = [&](const std::string& content, const std::string& encoding) {
        const std::string path = folder.write("b.txt", content);
        const std::string expected = path + ": is " + encoding +
                                     " text; expected UTF-8; convert it with: iconv -f " + encoding +
                                     " -t UTF-8 '" + path + "' > utf8.txt";
        EXPECT_EQ(message_of<UsageError>([&] { open_data({path}, {}, bytes); }), expected);
        EXPECT_EQ(message_of<UsageError>([&] { open_data({folder / "a.txt"}, {path}, bytes); }), expected);
        EXPECT_EQ(message_of<UsageError>([&] { open_split({folder / "*.txt"}, bytes); }), expected);
        EXPECT_EQ(folder.files().size(), 2u);  // no cache of the other text
    };
    refused("\xFF\xFE" + utf16(text), "UTF-16");
    refused("\xFE\xFF" + utf16(text, true), "UTF-16");
    refused(utf16(text), "UTF-16LE");
    refused(utf16(text, true), "UTF-16BE");
    refused(std::string("\xFF\xFE\0\0F\0\0\0", 8), "UTF-32");
    // Greek, whose letters have no zero byte in UTF-16, and occasional spaces.
    std::string greek;
    for (int i = 0; i < 40; i++) greek += "\xB1\x03\xB2\x03\xB3\x03\xB4\x03" + std::string(" \0", 2);
    refused(greek, "UTF-16LE");
    // a letter whose code ends in zero, and UTF-32 without a mark
    refused(std::string("\0\1", 2) + utf16(text), "UTF-16LE");
    refused(utf16(text, true) + std::string("\1\0", 2), "UTF-16BE");
    std::string wide, wide_big;
    for (const char character : text) {
        wide += character + std::string(3, '\0');
        wide_big += std::string(3, '\0') + character;
    }
    refused(wide, "UTF-32LE");
    refused(wide_big, "UTF-32BE");
    // Data with zeros at both even and odd places is accepted, and so is any text without zeros.
    for (const std::string& accepted : {text, std::string(1000, '\0'), text + std::string(1, '\0')})
        EXPECT_EQ(split_of({folder.write("b.txt", accepted)}), accepted);
}
