// A run's folder, in every state in which kills, damage and other processes leave it: which checkpoint a run
// resumes from, and what its folder holds then.
#include <cctype>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

#include "temporary_folder.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/run/logger.h"
#include "trainer/run/resume.h"

namespace {

namespace fs = std::filesystem;

// Checkpoints are written as "3" or "3.damaged"; other names are themselves.
const std::string zeros = "step_0000000";
std::string name_of(const std::string& word) { return std::isdigit(word[0]) ? zeros + word : word; }

class RunFolder : public testing::Test {
protected:
    static ResumePoint find(const std::string& resume, const std::string& out, const Note& note = {}) {
        Options options;
        options.output.folder = out;
        options.output.resume = resume;
        return find_resume_point(
            options, note ? note : [](const std::string&) {});
    }
    std::string path_of(const std::string& word) const {
        return checkpoints_folder(run) + "/" + name_of(word);
    }
    // A checkpoint of two small files beside its state. With "!" behind its name it lacks one; "=3" behind a
    // name without a step says the step.
    void make(const std::string& word, bool evaluated = true) const {
        const std::string path = path_of(word.substr(0, word.find_first_of("!=")));
        const size_t equals = word.find('=');
        const int step = std::atoi(equals == word.npos ? fs::path(path).filename().c_str() + 5
                                                       : word.c_str() + equals + 1);
        fs::create_directories(path);
        std::ofstream(path + "/model.safetensors") << "weights of step " << step;
        std::ofstream(path + "/config.json") << "{}";
        fs::remove(path + "/state.json");
        write_state(path, {.step = step, .batch_size = 1, .evaluated = evaluated});
        if (word.ends_with('!')) fs::remove(path + "/config.json");
    }
    void make_all(const std::string& words) const {
        fs::create_directories(checkpoints_folder(run));
        std::ofstream(metrics_file(run)) << "{\"kind\":\"train\",\"step\":1}\n";
        std::istringstream all(words);
        for (std::string word; all >> word;) make(word);
    }
    // The names in the checkpoints folder, as make_all takes them.
    std::string checkpoints() const {
        std::set<std::string> names;
        for (const auto& entry : fs::directory_iterator(checkpoints_folder(run)))
            names.insert(entry.path().filename());
        std::string words;
        for (const std::string& name : names)
            words += (words.empty() ? "" : " ") + name.substr(name.starts_with(zeros) ? zeros.size() : 0);
        return words;
    }
    std::vector<std::string> prepare(ResumePoint from) const {
        std::vector<std::string> notes;
        prepare_run_folder(from, [&](const std::string& line) { notes.push_back(line); });
        return notes;
    }
    TemporaryFolder folder;
    const std::string run = folder / "run", branch = folder / "branch";
};

struct Folder {
    const char *state, *before, *given;  // given: the checkpoint after --resume; "": --resume auto
    int step;                            // from which the run resumes; 0: from the start
    const char* after;
};
void PrintTo(const Folder& folder, std::ostream* out) { *out << folder.state; }

class Found : public RunFolder, public testing::WithParamInterface<Folder> {
protected:
    Found() { make_all(GetParam().before); }
    const std::string given = *GetParam().given ? path_of(GetParam().given) : "";
};

TEST_P(Found, IsResumedAndTidied) {
    ResumePoint from = find(given.empty() ? "auto" : given, run);
    ASSERT_EQ(from.step(), GetParam().step);
    std::string before_last, last;
    prepare_run_folder(from, [&](const std::string& line) { before_last = std::exchange(last, line); });
    EXPECT_EQ(checkpoints(), GetParam().after);
    if (from.step() == 0) {
        EXPECT_EQ(before_last, run + " holds a run without a checkpoint; it starts again from step 1");
        EXPECT_EQ(last, "its metrics are now called " + metrics_file(run) + ".superseded");
        return;
    }
    EXPECT_EQ(last, fmt::format("continuing from step {} of {}", from.step(), from.checkpoint));
    EXPECT_EQ(whole_checkpoint(from.checkpoint).step, from.step());
    EXPECT_EQ(fs::exists(given) ? given : newest_checkpoint(run).path, from.checkpoint);
}

TEST_P(Found, IsLeftAsItIsByABranch) {
    const std::string before = checkpoints();
    if (GetParam().step == 0) {
        EXPECT_THROW(find(run, branch), UsageError);
        EXPECT_EQ(checkpoints(), before);
        return;
    }
    const ResumePoint from = find(given.empty() ? run : given, branch);
    EXPECT_EQ(from.step(), GetParam().step);
    prepare(from);
    EXPECT_EQ(checkpoints(), before);
    EXPECT_FALSE(fs::exists(checkpoints_folder(branch)));
}

INSTANTIATE_TEST_SUITE_P(
    RunFolder, Found,
    testing::Values(Folder{"the newest of several", "3 6", "", 6, "3 6"},
                    Folder{"a step of nine digits", "3 step_123456789", "", 123456789, "3 step_123456789"},
                    Folder{"no checkpoint yet", "", "", 0, ""},
                    Folder{"damage", "3 6! 9!", "", 3, "3 6.damaged 9.damaged"},
                    Folder{"damage before", "3! 6", "", 6, "3 6"},
                    Folder{"damage once more", "3 6! 6.damaged", "", 3, "3 6.damaged 6.damaged-2"},
                    Folder{"an earlier one given", "3 6 9!", "3", 3, "3 6.superseded 9.superseded"},
                    Folder{"one given that was set aside", "3 6 9 6.superseded", "6.superseded", 6,
                           "3 6 6.superseded 9.superseded"},
                    Folder{"a copy given", "3 6 backup=3", "backup", 3, "backup 3 6.superseded"},
                    Folder{"a whole leftover given", "3 6 3.tmp-0123abcd", "3.tmp-0123abcd", 3,
                           "3 3.superseded 6.superseded"},
                    Folder{"killed while writing", "3 6.tmp-0123abcd!", "", 3, "3"},
                    Folder{"killed before anything was saved", "3.tmp-0123abcd!", "", 0, ""},
                    Folder{"killed before the last rename", "3 6.tmp-0123abcd 9.tmp-76543210!", "", 6, "3 6"},
                    Folder{"killed while an older one was removed", "3.tmp-0123abcd 6", "", 6, "6"},
                    Folder{"a name taken meanwhile", "3 3.tmp-0123abcd", "", 3, "3"},
                    Folder{"damage beside a whole leftover", "3! 3.tmp-0123abcd", "", 3, "3 3.damaged"},
                    // left by versions that replaced a checkpoint by one of the same step
                    Folder{"two without a name", "3.tmp-0123abcd 3.tmp-76543210", "", 3, "3"},
                    Folder{"names of others", "3 step_21 step_20.tmp-0123abc mine.tmp-0123abcd", "", 3,
                           "mine.tmp-0123abcd 3 step_20.tmp-0123abc step_21"}));

TEST_F(RunFolder, NoWholeCheckpointIsNotNoCheckpoint) {
    make_all("3! 6!");
    std::vector<std::string> notes;
    EXPECT_EQ(message_of<UsageError>(
                  [&] { find("auto", run, [&](const std::string& line) { notes.push_back(line); }); }),
              run + ": none of its 2 checkpoints is whole");
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_EQ(notes[0],
              "the checkpoint of step 6 is passed over: " + path_of("6") + "/config.json: is missing");
    EXPECT_EQ(newest_checkpoint(folder / "nowhere").path, "");
}

// Between the check of a folder and its lock, another process may have trained there and ended.
TEST_F(RunFolder, WhatAnotherProcessWroteMeanwhileIsNotOverwritten) {
    const auto expect_refused = [&](const std::vector<ResumePoint>& points) {
        const std::string before = checkpoints(), metrics = read_file(metrics_file(run));
        for (const ResumePoint& from : points) {
            EXPECT_EQ(message_of<UsageError>([&] { prepare(from); }),
                      from.run_folder +
                          ": another process has written there while this one was starting; "
                          "nothing was changed, start again");
            EXPECT_EQ(checkpoints(), before);
            EXPECT_EQ(read_file(metrics_file(run)), metrics);
        }
    };
    const ResumePoint fresh = find("none", run), automatic = find("auto", run);
    make_all("");
    const ResumePoint without_checkpoint = find("auto", run);
    make("3");
    expect_refused({fresh, automatic, without_checkpoint});
    const ResumePoint newest = find("auto", run), given = find(path_of("3"), "");
    make("6");
    expect_refused({newest, given});
    const ResumePoint newer = find("auto", run);
    fs::remove_all(path_of("6"));  // the run no longer keeps that checkpoint
    const ResumePoint branching = find(path_of("3"), branch);
    prepare(branching);
    expect_refused({newer, branching});
}

TEST_F(RunFolder, ARunIsNotBegunAmongThoseOfAnother) {
    make_all("3");
    const std::string checkpoints = checkpoints_folder(run);
    for (const std::string& out : {path_of("3"), path_of("3") + "/", checkpoints, checkpoints + "/"}) {
        EXPECT_EQ(message_of<UsageError>([&] { find("none", out); }),
                  "--out " + out + " is the checkpoints folder of a run; expected a folder for a new run");
    }
    EXPECT_EQ(
        message_of<UsageError>([&] { find("none", run); }),
        "--out " + run +
            " holds another run; expected a new or empty folder, or --resume auto to continue that run");
    fs::create_directory(folder / "checkpoints");  // a folder that has this name by chance
    EXPECT_TRUE(find("none", folder / "checkpoints").found.empty());
}

// A checkpoints folder on a disk that is not mounted: steps were trained that could not be saved, and
// --resume auto began the run again.
TEST_F(RunFolder, ALinkToCheckpointsThatLeadsNowhereIsRefused) {
    make_all("3");
    fs::rename(checkpoints_folder(run), folder / "disk");
    fs::create_directory_symlink(folder / "disk", checkpoints_folder(run));
    EXPECT_EQ(find("auto", run).step(), 3);  // where the disk is there
    fs::rename(folder / "disk", folder / "unmounted");
    for (const auto& [resume, out] :
         {std::pair<std::string, std::string>{"auto", run}, {run, ""}, {"none", run}}) {
        EXPECT_EQ(message_of<UsageError>([&] { find(resume, out); }),
                  checkpoints_folder(run) + ": is a link to " + folder / "disk" +
                      ", which is not there; expected a folder; is its disk mounted?");
    }
}

// Two runs that begin in one second propose one name.
TEST_F(RunFolder, AProposedNameMayBeTaken) {
    const fs::path before = fs::current_path();
    fs::current_path(folder.path());
    ResumePoint point;
    std::string taken;
    do {  // repeated if a second ends in between
        taken = new_run_folder();
        folder.write("metrics.jsonl", "{}\n");
        fs::create_directories(taken);
        fs::rename("metrics.jsonl", metrics_file(taken));
        point = find("none", "");
    } while (point.run_folder != taken);
    prepare_run_folder(point, [](const std::string&) {});
    EXPECT_EQ(point.run_folder, taken + "-2");
    fs::current_path(before);
}

// --out may name a folder that holds other things.
TEST_F(RunFolder, OnlyMetricsThatWereLeftHalfWrittenAreRemoved) {
    make_all("3");
    const std::vector<std::string> names = {"photos.tmp-2024", "letter.tmp-0123abcd", "metrics.jsonl.tmp-old",
                                            "metrics.jsonl.tmp-00ff00ff"};
    for (const std::string& name : names) std::ofstream(run + "/" + name) << "x";
    prepare(find("auto", run));
    for (const std::string& name : names)
        EXPECT_EQ(fs::exists(run + "/" + name), name != names.back()) << name;
}

TEST_F(RunFolder, ARunIsCompleteOnceItsLastCheckpointIsEvaluatedAndNamed) {
    const auto is_complete = [&](int steps) { return find("auto", run).is_complete(steps); };
    make_all("3");
    EXPECT_TRUE(is_complete(3));
    EXPECT_FALSE(is_complete(4));
    make("3", false);
    EXPECT_FALSE(is_complete(3));
    make("3");
    rename_path(path_of("3"), path_of("3.tmp-0123abcd"));
    EXPECT_FALSE(is_complete(3));
}

// They were removed without a word.
TEST_F(RunFolder, DamagedLinesOfTheMetricsAreCounted) {
    make_all("3");
    const auto said_with = [&](const std::string& more) {
        std::ofstream(metrics_file(run))
            << "{\"kind\":\"run\"}\n{\"kind\":\"train\",\"step\":1}\n"
               "{\"kind\":\"train\",\"step\":2.0}\n{\"kind\":\"train\",\"step\":3}\n"
            << more;
        std::vector<std::string> notes = prepare(find("auto", run));
        notes.pop_back();  // continuing from ..
        return notes;
    };
    EXPECT_TRUE(said_with("{\"kind\":\"train\",\"step\":4}\n{\"kind\":\"tra").empty());
    EXPECT_EQ(
        said_with("{\"kind\":\n[]\n{\"kind\":\"train\",\"step\":2.5}\n{\"kind\":\"val\",\"step\":-1e300}\n"),
        std::vector{metrics_file(run) + ": 4 lines are left out: no JSON object with a kind and a step"});
}

TEST_F(RunFolder, StepsWithoutALineInTheMetricsAreNamed) {
    make_all("7");
    const auto said_with = [&](const std::vector<int>& steps) {
        fs::remove(metrics_file(run));
        for (const int step : steps)
            std::ofstream(metrics_file(run), std::ios::app)
                << fmt::format("{{\"kind\":\"train\",\"step\":{}}}\n", step);
        std::vector<std::string> notes = prepare(find("auto", run));
        notes.pop_back();  // continuing from ..
        return notes;
    };
    const std::string said = metrics_file(run) + " has no lines for these steps: ";
    EXPECT_EQ(said_with({1, 4, 5, 7}), std::vector{said + "2 to 3, 6"});
    EXPECT_EQ(said_with({}), std::vector{said + "1 to 7"});
    EXPECT_TRUE(said_with({1, 2, 3, 4, 5, 6, 7}).empty());
}

TEST_F(RunFolder, EveryWrongByteOfACheckpointIsSeen) {
    make_all("6");
    for (const std::string name : {"state.json", "model.safetensors", "config.json"}) {
        const std::string path = path_of("6") + "/" + name, whole = read_file(path);
        std::vector<std::string> wrong = {whole + " "};
        for (size_t bytes = 0; bytes < whole.size(); bytes++) wrong.push_back(whole.substr(0, bytes));
        for (size_t bit = 0; bit < 8 * whole.size(); bit++) {
            wrong.push_back(whole);
            wrong.back()[bit / 8] = static_cast<char>(whole[bit / 8] ^ (1 << (bit % 8)));
        }
        for (size_t i = 0; i < wrong.size(); i++) {
            if (name == "state.json") { EXPECT_THROW(parse_state(path, wrong[i]), UsageError) << i; }
            if (i % 41 != 0) continue;  // files are slow
            std::ofstream(path, std::ios::binary) << wrong[i];
            const std::string message = message_of<UsageError>([&] { whole_checkpoint(path_of("6")); });
            EXPECT_TRUE(message.starts_with(path + ": ")) << message;
        }
        fs::remove(path);
        EXPECT_EQ(message_of<UsageError>([&] { whole_checkpoint(path_of("6")); }), path + ": is missing");
        std::ofstream(path, std::ios::binary) << whole;
        EXPECT_EQ(whole_checkpoint(path_of("6")).step, 6);
    }
}

TEST_F(RunFolder, HostileStatesAreRefused) {
    for (const std::string text : {"", "[]", "{\"xxh3_64\": 5}", "{\"xxh3_64\": \"0123456789abcdef\"}"})
        EXPECT_THROW(parse_state("state.json", text), UsageError) << text;
    EXPECT_THROW(parse_state("state.json", std::string(1000000, '[')), UsageError);
}

// JSON has no number for a loss that is not finite, and null means that nothing was measured.
TEST_F(RunFolder, AStateIsReadAsItWasWritten) {
    fs::create_directories(run);
    for (const std::optional<double> loss :
         {std::optional<double>(), {1.0 / 3.0}, {NAN}, {INFINITY}, {-INFINITY}}) {
        const TrainingState state = {.step = 12,
                                     .optimizer_step = 11,
                                     .batch_size = 3,
                                     .val_loss = loss,
                                     .options = {{"lr", 1e-3}, {"out", "not UTF-8: \xff"}}};
        write_state(run, state);
        const TrainingState read = whole_checkpoint(run);
        fs::remove(run + "/state.json");
        EXPECT_EQ(read.step, 12);
        EXPECT_EQ(read.optimizer_step, 11);
        EXPECT_EQ(read.options.at("lr"), 1e-3);
        ASSERT_EQ(read.val_loss.has_value(), loss.has_value());
        if (loss) { EXPECT_EQ(fmt::format("{}", *read.val_loss), fmt::format("{}", *loss)); }
    }
}

TEST_F(RunFolder, KnowsRunsAndCheckpointsByTheirPlace) {
    make_all("3");
    const std::string checkpoint = path_of("3");
    EXPECT_TRUE(is_run_folder(run));
    EXPECT_FALSE(is_run_folder(checkpoint));
    EXPECT_TRUE(is_checkpoint_folder(checkpoint));
    EXPECT_TRUE(is_checkpoint_folder(checkpoint + "/"));
    fs::remove(checkpoint + "/state.json");
    EXPECT_TRUE(is_checkpoint_folder(checkpoint));  // a damaged one
    EXPECT_FALSE(is_checkpoint_folder(run));
    EXPECT_FALSE(is_checkpoint_folder(run + "/nowhere"));
}

}  // namespace
