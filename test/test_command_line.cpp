// The programs' command lines: every error is one line in our words, and --help shows none of the parser's
// words.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <sstream>

#include "program.h"
#include "system/error.h"
#include "temporary_folder.h"
#include "trainer/models/families.h"
#include "trainer/run/evaluate_options.h"
#include "trainer/run/generate_options.h"
#include "trainer/run/options.h"

namespace {

template <class Parse>
std::string refusal_by(const Parse& parse, const std::vector<std::string>& arguments) {
    std::vector<const char*> words = {"program"};
    for (const std::string& argument : arguments) words.push_back(argument.c_str());
    try {
        parse(static_cast<int>(words.size()), words.data());
    } catch (const UsageError& error) { return error.what(); }
    return "";
}

std::string refusal(const std::vector<std::string>& arguments) {
    return refusal_by([](int count, const char* const* words) { parse_options(count, words); }, arguments);
}

void expect_own_words(const std::string& line, const std::string& about) {
    EXPECT_EQ(line.find('\n'), line.npos) << line;
    EXPECT_LT(line.size(), 300u) << line;
    EXPECT_TRUE(says(line, about)) << about;
    for (const char* word : {"Could not", "INT", "FLOAT", "TEXT", "Option Group", "not in range", "Value ",
                             "were not", "INI", "[1 -"})
        EXPECT_FALSE(says(line, word));
}

// The options with a value, as in the first line of a run's metrics.
std::vector<std::string> options_with_values(const std::set<std::string>& any_text) {
    const char* const words[] = {"train_gpt2"};
    const nlohmann::json values = parse_options(1, words)->values;
    std::vector<std::string> names;
    for (const auto& [name, value] : values.items()) {
        if (!value.is_boolean() && !any_text.contains(name)) names.push_back("--" + name);
    }
    return names;
}

TEST(CommandLine, AWrongValueOfAnyOptionWasToldInTheParsersWords) {
    const std::vector<std::string> names =
        options_with_values({"train-data", "val-data", "init-from", "hellaswag", "out", "resume", "device"});
    EXPECT_GT(names.size(), 45u);
    for (const std::string& name : names) {
        for (const std::string value : {"abc", "-7", "1e999", "nan", "inf", "0x10", "1.5.5", " 5", "5 ",
                                        "9999999999999999999999999999999999999999", "1;5", "--"}) {
            const std::string line = refusal({name + "=" + value});
            expect_own_words(line, name);
            EXPECT_TRUE(says(line, "expected"));
        }
        expect_own_words(refusal({name + "=" + std::string(10000, 'x')}), name);
        expect_own_words(refusal({name, ""}), name + " has an empty value; give it a value or leave it out");
        expect_own_words(refusal({name}), name + " has no value; expected one after it");
        expect_own_words(refusal({name, "-x", "12"}),
                         name + " has no value; -x follows it; if that is the value, write ");
    }
}

TEST(CommandLine, AnOptionsNameIsNotTheValueOfTheOneBefore) {
    const std::string resume =
        "--resume has no value; --steps follows it; if that is the value, write --resume=--steps";
    EXPECT_EQ(refusal({"--resume", "--steps", "12"}), resume);
    EXPECT_EQ(refusal({"-i", "-o", "run"}),
              "--train-data has no value; -o follows it; if that is the value, write --train-data=-o");
    EXPECT_EQ(refusal({"--out", "--steps=12"}),
              "--out has no value; --steps=12 follows it; if that is the value, write --out=--steps=12");
    const char* const words[] = {"generate_gpt2", "model", "--prompt=--samples", "--top-k", "5"};
    EXPECT_EQ(parse_generate_command(5, words)->prompt, "--samples");
}

Options options_of_words(std::vector<const char*> words) {
    words.insert(words.begin(), "train_gpt2");
    return *parse_options(static_cast<int>(words.size()), words.data());
}

// The parser took them for lists: 'q' was read in place of '[q]', and an empty word was left out.
TEST(CommandLine, NamesInSquareBracketsAndEmptyWordsAreWhatTheyAre) {
    const auto files = [](std::vector<const char*> words) { return options_of_words(std::move(words)).data; };
    const std::vector<std::string> brackets{"./[q]", "a", "./[b,c]"};
    EXPECT_EQ(files({"-i", "[q]", "a", "[b,c]"}).train, brackets);
    for (const char* joined : {"--train-data=[q]", "-i[q]"})
        EXPECT_EQ(files({"--plan", joined}).train, std::vector{brackets[0]});
    EXPECT_EQ(refusal({"-i", "a", ""}), "a word of the command line is empty; leave it out");
    const TemporaryFolder folder;
    const std::string file = folder.write("options", "val-data = [q]\n");
    EXPECT_EQ(files({"--config", file.c_str()}).val, std::vector{brackets[0]});
    EXPECT_TRUE(says(refusal({"--config", folder.write("list", "val-data = [a,b]\n")}),
                     "line 1: --val-data is a list; expected one name or pattern, such as {a.txt,b.txt}"));
    for (const std::string prompt : {"[a,b]", "--foo=", "--"}) {
        const char* const words[] = {"generate_gpt2", "model", "--prompt", prompt.c_str(), "--top-k", "5"};
        EXPECT_EQ(parse_generate_command(6, words)->prompt, prompt);
    }
}

TEST(CommandLine, WordsThatAreNoOptionsAreNamed) {
    const auto generate = [](int count, const char* const* words) { parse_generate_command(count, words); };
    const auto evaluate = [](int count, const char* const* words) { parse_evaluate_options(count, words); };
    EXPECT_EQ(refusal({"--stepz=5"}), "--stepz is not an option; did you mean --steps?");
    EXPECT_EQ(refusal({"plan"}), "'plan' is not the value of any option; see train_gpt2 --help");
    EXPECT_EQ(refusal({"-y"}), "-y is not an option; see train_gpt2 --help");
    EXPECT_EQ(refusal_by(evaluate, {"model", "--val-data", "a.bin", "b.bin"}),
              "'b.bin' is not the value of any option; a glob needs quotes, such as 'data/*.bin'; see "
              "evaluate_gpt2 --help");
    EXPECT_EQ(refusal({"--steps", "5", "--tokens", "7"}),
              "--steps and --tokens exclude each other; expected only one of them; see train_gpt2 --help");
    EXPECT_EQ(refusal({"--plan=maybe"}), "--plan=maybe; expected --plan alone, or true or false");
    EXPECT_EQ(refusal({"--plan=2"}), "--plan=2; expected --plan alone, or true or false");
    EXPECT_EQ(refusal_by(generate, {"model", "more"}),
              "'more' is not the value of any option; see generate_gpt2 --help");
    EXPECT_EQ(refusal_by(generate, {}), "CHECKPOINT is required; see generate_gpt2 --help");
    EXPECT_EQ(refusal_by(generate, {"model", "--samples", "65536"}),
              "--samples 65536; expected a whole number from 1 to 65535");
    EXPECT_EQ(refusal_by(evaluate, {"model", "--seq-len", "1e3"}),
              "--seq-len 1e3; expected a whole number from 1 to 1048576");
}

// As in llm.c, whose constant schedule has no warmup.
TEST(CommandLine, AConstantRateWarmsUpOnlyIfThatIsAsked) {
    const auto warmup = [](std::vector<const char*> words) {
        words.insert(words.begin(), "train_gpt2");
        return parse_options(static_cast<int>(words.size()), words.data())->optimizer.warmup;
    };
    EXPECT_EQ(warmup({}), 100);
    EXPECT_EQ(warmup({"-k", "constant"}), 0);
    EXPECT_EQ(warmup({"-k", "constant", "-u", "30"}), 30);
    EXPECT_EQ(warmup({"-k", "wsd"}), 100);
}

TEST(CommandLine, MuonHasDefaultsOfItsOwn) {
    const OptimizerChoice muon = options_of_words({"--optimizer", "muon"}).optimizer;
    const MuonDefaults family = family_of({}).muon;
    EXPECT_EQ(muon.lr, family.lr);
    EXPECT_EQ(muon.head_lr, family.head_lr);
    EXPECT_EQ(muon.momentum, 0.95);
    EXPECT_EQ(muon.weight_decay, 0);
    EXPECT_EQ(muon.schedule, "wsd");
    EXPECT_EQ(muon.warmup, 0);
    EXPECT_EQ(muon.cooldown, 0.7);
    EXPECT_EQ(muon.cooldown_shape, "linear");

    const OptimizerChoice given =
        options_of_words({"--optimizer", "muon", "--lr", "0.04", "--vector-lr", "0.01", "--schedule", "wsd",
                          "--cooldown", "0.3", "--warmup", "7", "--beta2", "0.9"})
            .optimizer;
    EXPECT_EQ(given.cooldown, 0.3);
    EXPECT_EQ(given.cooldown_shape, "linear");
    EXPECT_EQ(given.warmup, 7);
    EXPECT_EQ(given.beta2, 0.9);
    EXPECT_EQ(given.embedding_lr, family.embedding_lr);

    // AdamW's recipe, but for the optimizer
    const OptimizerChoice adamw = options_of_words({}).optimizer,
                          matched = options_of_words({"--optimizer", "muon", "--muon-scale", "match-rms"})
                                        .optimizer;
    EXPECT_EQ(matched.lr, adamw.lr);
    EXPECT_EQ(matched.embedding_lr, adamw.lr);
    EXPECT_EQ(matched.weight_decay, adamw.weight_decay);
    EXPECT_EQ(matched.schedule, adamw.schedule);
    EXPECT_EQ(matched.warmup, adamw.warmup);

    const Options o = options_of_words({"--optimizer", "muon", "--lr", "0.04", "--vector-lr", "0.01"});
    EXPECT_DOUBLE_EQ(o.optimizer_at(0.02).rate(Role::matrix), 1);
    EXPECT_DOUBLE_EQ(o.optimizer_at(0.02).rate(Role::vector), 0.25);
    EXPECT_EQ(o.optimizer_at(0.02).momentum, 0.95);
    EXPECT_EQ(o.optimizer_at(0.02).muon_scale, MuonScale::original);
    EXPECT_EQ(
        options_of_words({"--optimizer", "muon", "--muon-scale", "match-rms"}).optimizer_at(0.1).muon_scale,
        MuonScale::match_rms);
    EXPECT_EQ(options_of_words({}).optimizer_at(0.5).rate(Role::vector), 1);
    EXPECT_EQ(o.values.at("cooldown"), nlohmann::json(0.7));
    EXPECT_EQ(options_of_words({}).values.at("cooldown"), nlohmann::json(""));
    EXPECT_EQ(options_of_words({"-k", "wsd"}).values.at("cooldown"), nlohmann::json(0.2));
}

TEST(CommandLine, OptionsOfMuonAndOfWsdAreRefusedWhereTheyHaveNoEffect) {
    for (const char* option : {"--embedding-lr", "--head-lr", "--vector-lr"})
        EXPECT_TRUE(says(refusal({option, "0.1"}),
                         std::string(option) + " has no effect with --optimizer adamw; leave it out"));
    EXPECT_TRUE(says(refusal({"--muon-scale", "match-rms", "--optimizer", "sgd"}),
                     "--muon-scale has no effect with --optimizer sgd"));
    EXPECT_TRUE(says(refusal({"--optimizer", "muon", "--nesterov"}),
                     "--nesterov has no effect with --optimizer muon"));
    EXPECT_TRUE(says(refusal({"--optimizer", "muon", "--lr", "0"}), "expected at least 1e-30"));
    EXPECT_TRUE(says(refusal({"--cooldown", "0.5"}), "--cooldown has no effect with --schedule cosine"));
    EXPECT_TRUE(says(refusal({"--optimizer", "muon", "-k", "linear", "--cooldown-shape", "sqrt"}),
                     "--cooldown-shape has no effect with --schedule linear"));
    EXPECT_EQ(refusal({"--schedule", "wsd", "--cooldown", "0.5", "--cooldown-shape", "linear"}), "");
    EXPECT_TRUE(says(refusal({"--schedule", "wsd", "--cooldown", "0"}), "--cooldown 0; expected a number"));
}

// strtoll read it as octal: 010 meant 8 steps.
TEST(CommandLine, ALeadingZeroMadeANumberOctal) {
    const char* const words[] = {"train_gpt2", "--steps", "010"};
    EXPECT_EQ(parse_options(3, words)->length.steps, 10);
}

// A run resumed with --lr 0.5 reported a change, and a folder called 5 was a number.
TEST(CommandLine, TheRunsOptionsWereNotTheNumbersThatTheyMean) {
    const char* const words[] = {"train_gpt2", "--lr", ".5", "--steps", "007", "--out", "5"};
    const nlohmann::json values = parse_options(7, words)->values;
    EXPECT_EQ(values.at("lr"), nlohmann::json(0.5));
    EXPECT_EQ(values.at("steps"), nlohmann::json(7));
    EXPECT_EQ(values.at("out"), nlohmann::json("5"));
    EXPECT_EQ(values.at("batch-size"), nlohmann::json(12));
    EXPECT_EQ(values.at("tokens"), nlohmann::json(""));
    // These defaults depend on other options.
    EXPECT_EQ(values.at("total-batch"), nlohmann::json(768));
    EXPECT_EQ(values.at("seq-len"), nlohmann::json(64));
    EXPECT_EQ(values.at("tokenizer"), nlohmann::json("byte"));
}

// They were those of a run without options.
TEST(CommandLine, TheSizesOfANamedModelWereNotAmongTheRunsOptions) {
    const nlohmann::json values = options_of_words({"--model", "gpt3:c384", "--context", "32"}).values;
    for (const auto& [name, value] : std::map<std::string, int>{
             {"layers", 6}, {"heads", 6}, {"channels", 384}, {"context", 32}, {"vocab", 50257}})
        EXPECT_EQ(values.at(name), nlohmann::json(value)) << name;
    EXPECT_FALSE(values.contains("family"));
    EXPECT_EQ(values.at("kv-heads"), nlohmann::json(""));
    const nlohmann::json llama = options_of_words({"--model", "llama:d12"}).values;
    EXPECT_EQ(llama.at("layers"), nlohmann::json(12));
    EXPECT_EQ(llama.at("kv-heads"), nlohmann::json(12));
}

TEST(CommandLine, HelpShowedTheParsersWordsAndLongLines) {
    for (const auto& [program, takes] :
         {std::pair{TRAIN_PROGRAM, "--train-data"}, std::pair{GENERATE_PROGRAM, "CHECKPOINT"},
          std::pair{TOKENIZE_PROGRAM, "FILE"}, std::pair{CONVERT_PROGRAM, "MODEL"}}) {
        const ProgramResult result = run_program(program, "--help");
        EXPECT_TRUE(succeeded(result));
        EXPECT_TRUE(says(result.output, takes));
        for (const char* word :
             {"Option Group", " INT", " FLOAT", "TEXT:", "Excludes", "1073741824", "Print this", "Display"})
            EXPECT_FALSE(says(result.output, word)) << word;
        std::istringstream lines(result.output);
        for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
    }
    const std::string help = run_program(TRAIN_PROGRAM, "--help").output;
    EXPECT_TRUE(says(help, "\noptimizer:\n  --optimizer adam|adamw|muon|rmsprop|sgd\n"));
    EXPECT_TRUE(says(help,
                     "\n  -x,--steps N                steps to train; the default with --init-from is 2 "
                     "epochs [2000]\n"));
    EXPECT_TRUE(says(help, "\n  --layers N                  number of transformer blocks (1 to 4096) [4]\n"));
}

TEST(CommandLine, TheExamplesInTheHelpAreCommandsThatTheProgramTakes) {
    for (const char* program :
         {TRAIN_PROGRAM, GENERATE_PROGRAM, EVALUATE_PROGRAM, TOKENIZE_PROGRAM, CONVERT_PROGRAM}) {
        const std::string help = run_program(program, "--help").output,
                          examples = help.substr(help.find("\nexamples:\n"));
        EXPECT_EQ(std::count(examples.begin(), examples.end(), '\n'), 2 + 2 * 3) << examples;
        std::istringstream words(examples);
        for (std::string word; words >> word;) {
            if (word.starts_with("--")) {
                EXPECT_LT(help.find(word + " "), help.find("\nexamples:\n")) << word;
            }
        }
    }
}

TEST(CommandLine, ANameThatIsNearAnOptionsIsAskedFor) {
    const std::map<std::string, std::string> meant = {{"--stpes", "--steps"},
                                                      {"--batchsize", "--batch-size"},
                                                      {"--Batch_Size=4", "--batch-size"},
                                                      {"--learning_rate", "--lr"},
                                                      {"--max_iters", "--steps"},
                                                      {"--n_embd", "--channels"},
                                                      {"--val", "--val-data, --val-every or --val-steps"},
                                                      {"--checkpoint", "--checkpoint-every"},
                                                      {"--log-layers-norms", "--log-layer-norms"}};
    for (const auto& [word, option] : meant)
        EXPECT_EQ(refusal({word}),
                  word.substr(0, word.find('=')) + " is not an option; did you mean " + option + "?");
    // Too far from any option, near too many, or longer than a name.
    for (const std::string& word :
         {std::string("--nonsense"), std::string("--no"), std::string("--"), "--" + std::string(1000, 's')})
        EXPECT_FALSE(says(refusal({word}), "did you mean")) << word;
}

// The files that make install writes for the shell.
TEST(CommandLine, TheManPageHoldsEveryOption) {
    for (const char* program :
         {TRAIN_PROGRAM, GENERATE_PROGRAM, EVALUATE_PROGRAM, TOKENIZE_PROGRAM, CONVERT_PROGRAM}) {
        const ProgramResult page = run_program(program, "--print-man-page");
        ASSERT_TRUE(succeeded(page));
        EXPECT_TRUE(page.output.starts_with(".TH ")) << page.output;
        const std::string help = run_program(program, "--help").output;
        int options = 0;
        std::istringstream lines(help.substr(0, help.find("\nexamples:\n")));
        for (std::string line; std::getline(lines, line);) {
            const size_t dashes = line.find("--");
            if (!line.starts_with("  -") || dashes > 5) continue;
            std::string name = line.substr(dashes, line.find(' ', dashes) - dashes);
            for (size_t at = 0; (at = name.find('-', at)) != name.npos; at += 2) name.insert(at, 1, '\\');
            EXPECT_TRUE(says(page.output, "\\fB" + name + "\\fR")) << name;
            options++;
        }
        EXPECT_GE(options, 5);
        std::istringstream text(page.output);
        // A line that begins with a dot is a command of troff, so none of the text may begin with one.
        for (std::string line; std::getline(text, line);) {
            if (line.starts_with('.') || line.starts_with('\'')) {
                EXPECT_TRUE(says(std::string(".TH .SH .SS .TP .PP .RS .RE .nf .fi .B "), line.substr(0, 3)))
                    << line;
            }
        }
    }
}

TEST(CommandLine, BashCompletesOptionsTheirChoicesAndFiles) {
    const TemporaryFolder folder;
    folder.write("book one.txt", "");
    const auto completed = [&](const std::string& words) {
        const std::string script = folder.write(
            "complete.sh", fmt::format("source <('{}' --print-bash-completion)\ncd '{}'\nCOMP_WORDS=({})\n"
                                       "COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_flatgpt_train_gpt2\n"
                                       "printf '%s|' \"${{COMPREPLY[@]}}\"",
                                       TRAIN_PROGRAM, folder.path(), words));
        const ProgramResult result = run_program("/bin/bash", script);
        EXPECT_EQ(result.errors, "");
        return result.output;
    };
    EXPECT_EQ(completed("train_gpt2 --val-"), "--val-data|--val-every|--val-steps|");
    EXPECT_EQ(completed("train_gpt2 --dtype ''"), "bf16|fp32|tf32|");
    EXPECT_EQ(completed("train_gpt2 --dtype = b"), "bf16|");
    EXPECT_EQ(completed("train_gpt2 --data-order ="), "shuffled|file|");
    EXPECT_EQ(completed("train_gpt2 -i boo"), "book one.txt|");
    EXPECT_EQ(completed("train_gpt2 --steps boo"), "|");
}

TEST(CommandLine, TextThatNobodyCouldReadWasNoError) {
    for (const char* program : {TRAIN_PROGRAM, GENERATE_PROGRAM, TOKENIZE_PROGRAM}) {
        for (const auto& [option, text] :
             {std::pair{"--help", "the help text"}, {"--version", "the version"}}) {
            const ProgramResult result =
                run_program("/bin/sh", fmt::format("-c \"'{}' {} >/dev/full\"", program, option));
            EXPECT_EQ(result.exit_code, 1) << program << " " << option;
            EXPECT_TRUE(says(result.errors, std::string(text) + " cannot be written to standard output\n"));
        }
    }
}

class Config : public testing::Test {
protected:
    std::string refusal_of(const std::string& text, const std::vector<std::string>& more = {}) {
        const std::string path = folder_.write("run.toml", text);
        std::vector<std::string> arguments = {"--config", path};
        arguments.insert(arguments.end(), more.begin(), more.end());
        std::string line = refusal(arguments);
        expect_own_words(line, "");
        const std::string begin = "--config " + path + ", line ";
        return line.starts_with(begin) ? line.substr(begin.size()) : line;
    }
    TemporaryFolder folder_;
};

TEST_F(Config, AnErrorInTheFileHadNoLine) {
    const std::string example = "; expected lines like lr = 0.0006";
    EXPECT_EQ(refusal_of("# a comment\n\nstepz = 5\n"),
              "3: 'stepz' is not an option's name; did you mean steps?");
    EXPECT_EQ(refusal_of("lr = 0.1\nsteps = abc\n"),
              "2: --steps abc; expected a whole number from 1 to 1073741824");
    EXPECT_EQ(refusal_of("lr = 0.1 0.2\n"), "1: --lr '0.1 0.2'; expected a number from 0 to 1e+30");
    EXPECT_EQ(refusal_of("batch-size = [1, 2]\n"),
              "1: --batch-size '[1, 2]'; expected a whole number from 1 to 1048576, or auto");
    EXPECT_EQ(refusal_of("lr = 0.1\nsteps = 5\n\nlr = 0.2\n"),
              "4: --lr is given twice, also in line 1; expected once");
    EXPECT_EQ(refusal_of("l = 0.1\n--lr = 0.2\n"), "2: --lr is given twice, also in line 1; expected once");
    EXPECT_EQ(refusal_of("[optimizer]\nlr = 0.1\n"),
              "1: [optimizer] begins a section, but this file has no sections" + example);
    EXPECT_EQ(refusal_of("lr =\n"), "1: --lr has an empty value; give it a value or leave the line out");
    EXPECT_EQ(refusal_of("lr = ''\n"), "1: --lr has an empty value; give it a value or leave the line out");
    EXPECT_EQ(refusal_of("lr\n"), "1: --lr has no value" + example);
    EXPECT_EQ(refusal_of("= 5\n"), "1: '' is not an option's name" + example);
    EXPECT_EQ(refusal_of("plan = maybe\n"), "1: --plan is 'maybe'; expected true or false");
    EXPECT_EQ(refusal_of("out = \"runs/a\n"), "1: the quote \"runs/a is not closed" + example);
    EXPECT_EQ(refusal_of("out = 'runs/a' b\n"), "1: 'b' follows the quoted value" + example);
    EXPECT_EQ(refusal_of("config = other.toml\n"),
              "1: --config is for the command line only; remove this line");
    EXPECT_EQ(refusal_of("help = true\n"), "1: --help is for the command line only; remove this line");
    EXPECT_EQ(refusal_of("model = gpt5\n").substr(0, 34), "1: --model: unknown model 'gpt5'; ");
    EXPECT_EQ(refusal_of(std::string("lr = 0.1\n\177ELF\0\1\n", 16)), "2: is not a line of text" + example);
    EXPECT_EQ(refusal_of("steps = 5\ntokens = 7\n"),
              "--steps and --tokens exclude each other; expected only one of them; see train_gpt2 --help");
    // The value on the command line is wrong, not the one in the file.
    EXPECT_EQ(refusal_of("steps = 5\n", {"--steps", "x"}),
              "--steps x; expected a whole number from 1 to 1073741824");
}

TEST_F(Config, LinesAreReadAsTheyAreMeant) {
    const std::string text =
        "\xEF\xBB\xBF\tsteps=7\r\n"  // a byte order mark, as editors on Windows write it
        "; another comment\n"
        "train-data = 'data/#1 of 2/*.bin'  # of two\n"
        "val-data = data/c#/val.bin # a name with a #\n"
        "lr = 0.5 # half\n"
        "deterministic\n"
        "no-graph = false\n"
        "-g = 9\n"
        "seed = 5";
    const std::string path = folder_.write("run.toml", text);
    const char* const words[] = {"train_gpt2", "--lr", "0.25", "--config", path.c_str()};
    const std::optional<Options> options = parse_options(5, words);
    EXPECT_EQ(options->length.steps, 7);
    EXPECT_EQ(options->data.train, std::vector<std::string>{"data/#1 of 2/*.bin"});
    EXPECT_EQ(options->data.val, std::vector<std::string>{"data/c#/val.bin"});
    EXPECT_EQ(options->optimizer.lr, 0.25);  // the command line takes precedence
    EXPECT_TRUE(options->system.deterministic);
    EXPECT_FALSE(options->system.no_graph);
    EXPECT_EQ(options->evaluation.sample_tokens, 9);
    EXPECT_EQ(options->system.seed, 5u);
}

// A Llama is named, or has one of the sizes that only a Llama has; the others follow.
TEST(CommandLine, SizesOfALlama) {
    const auto config_of = [](std::vector<const char*> words) {
        words.insert(words.begin(), "train_gpt2");
        return parse_options(static_cast<int>(words.size()), words.data())->model.config;
    };
    EXPECT_EQ(config_of({}).family, "gpt2");
    const ModelConfig named = config_of({"--model", "llama:d12", "--kv-heads", "4", "--untied"});
    EXPECT_EQ(named.family, "llama");
    EXPECT_EQ((std::array{named.L, named.NH, named.C, named.NKV, named.H, named.HS()}),
              (std::array{12, 12, 768, 4, 2048, 64}));
    EXPECT_FALSE(named.tied);
    EXPECT_EQ(named.rope_theta, 10000);
    const ModelConfig small = config_of({"--kv-heads", "2"});
    EXPECT_EQ(small.family, "llama");
    EXPECT_EQ((std::array{small.L, small.NH, small.C, small.NKV, small.H, small.V}),
              (std::array{4, 4, 128, 2, 352, 256}));
    EXPECT_TRUE(small.tied);
    EXPECT_EQ(config_of({"--head-size", "48", "--rope-theta", "5e5", "--norm-eps", "1e-6"}).head_size, 48);
    EXPECT_EQ(refusal({"--model", "d12", "--hidden", "512"}),
              "--hidden has no effect on --model d12; expected a Llama, such as llama:d12");
    const ModelConfig nanochat = config_of({"--nanochat", "--layers", "2", "--kv-heads", "2"});
    EXPECT_EQ(nanochat.family, "nanochat");
    EXPECT_EQ((std::array{nanochat.L, nanochat.NKV, nanochat.H, nanochat.V}), (std::array{2, 2, 512, 256}));
    EXPECT_FALSE(nanochat.tied);
    EXPECT_EQ(nanochat.norm_eps, 1e-6);
    EXPECT_EQ(config_of({"--model", "nanochat:d12", "--hidden", "1024"}).H, 1024);
    EXPECT_EQ(refusal({"--model", "llama:d12", "--nanochat"}),
              "--nanochat has no effect on --model llama:d12; expected one such as nanochat:d12, or none");
    const ModelConfig qwen3 = config_of({"--qwen3", "--channels", "72", "--heads", "5", "--head-size", "32"});
    EXPECT_EQ(qwen3.family, "qwen3");
    EXPECT_EQ((std::array{qwen3.C, qwen3.NH, qwen3.NKV, qwen3.HS()}), (std::array{72, 5, 5, 32}));
    EXPECT_EQ((std::array{qwen3.rope_theta, qwen3.norm_eps}), (std::array{1e6, 1e-6}));
    EXPECT_TRUE(qwen3.tied);
    EXPECT_FALSE(config_of({"--qwen3", "--untied"}).tied);
    for (const char* name : {"qwen3:0.6b", "qwen3_0.6b"}) {
        const ModelConfig published = config_of({"--model", name, "--context", "4096"});
        EXPECT_EQ(published.V, 151936);
        EXPECT_EQ(
            (std::array{published.L, published.NH, published.C, published.NKV, published.H, published.HS()}),
            (std::array{28, 16, 1024, 8, 3072, 128}));
    }
    EXPECT_TRUE(says(refusal({"--qwen3", "--channels", "72", "--heads", "5"}),
                     "72 channels do not divide into 5 heads"));
    EXPECT_TRUE(says(refusal({"--qwen3", "--nanochat"}), "exclude each other"));
    EXPECT_TRUE(says(refusal({"--kv-heads", "3"}), "3 heads of keys and values do not divide the 4 heads"));
    EXPECT_TRUE(says(refusal({"--init-from", "gpt2", "--untied"}), "exclude each other"));
}

// A name that is nearly right, or that is a family's, was answered with all names.
TEST(CommandLine, UnknownModelsAreToldTheNameTheyResemble) {
    EXPECT_EQ(
        refusal({"--model", "nanochat"}),
        "--model: unknown model 'nanochat'; expected --nanochat for a model of any sizes, or nanochat:d12");
    EXPECT_EQ(refusal({"--model", "qwen3"}),
              "--model: unknown model 'qwen3'; expected --qwen3 for a model of any sizes, or qwen3:0.6b");
    EXPECT_EQ(refusal({"--model", "Nanochat-D12"}),
              "--model: unknown model 'Nanochat-D12'; expected nanochat:d12");
    EXPECT_EQ(refusal({"--model", "gpt2_xl"}), "--model: unknown model 'gpt2_xl'; expected gpt2-xl");
    EXPECT_TRUE(says(refusal({"--model", "mistral"}), "unknown model 'mistral'; expected d12|d24"));
    EXPECT_TRUE(says(refusal({"--model", "mistral"}), "llama:d12|d24"));
}

// A recipe's steps = 19073 and --epochs 1 beside it excluded each other.
TEST_F(Config, TheCommandLineDidNotReplaceAnAlternativeOfTheFile) {
    const auto parsed = [&](const std::string& text, std::vector<const char*> words) {
        const std::string path = folder_.write("run.cfg", text);
        words.insert(words.begin(), {"train_gpt2", "--config", path.c_str()});
        return *parse_options(static_cast<int>(words.size()), words.data());
    };
    const Options epochs = parsed("steps = 5\n", {"--epochs", "2"});
    EXPECT_EQ(epochs.length.epochs, 2);
    EXPECT_EQ(epochs.step_count(768), 128);  // of 12 sequences
    const Options tokens = parsed("epochs = 2\n", {"-b", "1", "--tokens", "6400"});
    EXPECT_EQ(tokens.length.epochs, 0);
    EXPECT_EQ(tokens.step_count(768), 100);
    // model's other sizes, or init-from's weights, were dropped without a word
    for (const std::string line : {"model = d12", "init-from = gpt2"}) {
        const std::string name = "--" + line.substr(0, line.find(' '));
        EXPECT_EQ(message_of<UsageError>([&] {
                      parsed("steps = 5\n" + line, {"--layers", "1"});
                  }),
                  "--config " + folder_ / "run.cfg" + ", line 2: " + name +
                      " and the command line's --layers exclude each other; expected only one of them");
    }
    const Options sizes = parsed("model = d12\n", {"--layers", "1", "--heads", "2", "--channels", "16"});
    EXPECT_EQ(sizes.model.name, "");
    EXPECT_EQ(sizes.model.config.C, 16);
    for (const std::vector<const char*>& whole :
         {std::vector{"--model", "d12"}, std::vector{"--layers", "1", "--heads", "2", "--channels", "16"}})
        EXPECT_EQ(parsed("init-from = gpt2\nmodel = d24\n", whole).model.init_from, "");
    EXPECT_TRUE(parsed("qwen3 = true\n", {"--nanochat"}).model.nanochat);
    const Options named = parsed("layers = 1\nheads = 2\nchannels = 16\n", {"-e", "d12"});
    EXPECT_EQ(named.model.config.L, 12);
    EXPECT_EQ(named.model.config.C, 768);
}

TEST_F(Config, APipeOrADeviceWasReadForEver) {
    const std::string pipe = folder_ / "pipe";
    ASSERT_EQ(std::system(("mkfifo " + pipe).c_str()), 0);
    EXPECT_EQ(refusal({"--config", pipe}),
              "--config " + pipe + ": is a device or a pipe; expected a text file of options, one per line");
    EXPECT_EQ(refusal({"--config", "/dev/zero"}),
              "--config /dev/zero: is a device or a pipe; expected a text file of options, one per line");
    EXPECT_EQ(refusal({"--config", "/proc"}),
              "--config /proc: is a directory; expected a text file of options, one per line");
    EXPECT_EQ(refusal({"--config", "/none"}),
              "--config /none: there is no such file; expected a text file of options, one per line");
    const std::string file = folder_.write("run.toml", "");
    EXPECT_EQ(refusal({"--config", file, "--config", file}),
              "--config is given 2 times; expected once; see train_gpt2 --help");
}

}  // namespace
