// Runs that are stopped, killed, damaged or resumed with other options, as users run them: a resumed run
// ends with the same results as an uninterrupted one.
#include <fcntl.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "kernels/simt/target.h"
#include "metrics_lines.h"
#include "program.h"
#include "system/folder_lock.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/data/token_shard.h"
#include "trainer/run/resume.h"

namespace {

namespace fs = std::filesystem;

// A tiny model, every kind of line, micro-steps, and few steps between checkpoints, so that one is being
// written most of the time. Options in the arguments take precedence.
std::string with_tiny_model(const std::string& arguments) {
    std::string all = arguments + " --deterministic";
    for (const std::string option :
         {"--layers 1", "--heads 2", "--channels 16", simt::checked ? "--context 8" : "--context 16",
          simt::checked ? "--batch-size 1" : "--batch-size 2",
          simt::checked ? "--total-batch 16" : "--total-batch 64", "--warmup 2", "--sample-tokens 3",
          "--val-steps 2", "--val-every 7", "--sample-every 9"}) {
        if (arguments.find(option.substr(0, option.find(' ') + 1)) == std::string::npos) all += " " + option;
    }
    return all;
}
// Options of the runs that are killed. In checked builds a step takes half a second of computing.
constexpr int steps = simt::checked ? 16 : 200, kills = simt::checked ? 4 : 25;

// In memory if there is such a file system: the tests do not depend on disks, which are slow to sync.
class Resume : public testing::Test {
protected:
    static void SetUpTestSuite() {
        if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
        // for a tiny model, threads that wait for each other cost more than they gain
        setenv("OMP_NUM_THREADS", "1", 1);
    }
    static ProgramResult train(const std::string& arguments, const std::string& before = "cd /") {
        return run_program(TRAIN_PROGRAM, with_tiny_model(arguments), before);
    }
    static void expect_success(const ProgramResult& result) {
        EXPECT_EQ(result.exit_code, 0) << result.errors << result.output;
    }
    TemporaryFolder folder;
};

std::string newest_of(const std::string& run) {
    const std::optional<std::string> newest = newest_checkpoint(run);
    return newest ? *newest : "none";
}

// Lines without the varying parts: times, and the marks of runs.
std::vector<nlohmann::json> metrics(const std::string& run) {
    std::vector<nlohmann::json> lines = metrics_of(run);
    std::erase_if(lines, [](const nlohmann::json& line) { return line.at("kind") == "run"; });
    for (nlohmann::json& line : lines) {
        for (const char* time :
             {"step_ms", "tokens_per_second", "mfu", "power_w", "temperature_c", "sm_clock_mhz", "throttle"})
            line.erase(time);
    }
    return lines;
}

void expect_same_end(const std::string& run, const std::string& straight) {
    for (const char* file : {"model.safetensors", "optimizer_0000.safetensors"}) {
        const std::string bytes = read_file(newest_of(straight) + "/" + file);
        EXPECT_FALSE(bytes.empty());
        EXPECT_TRUE(read_file(newest_of(run) + "/" + file) == bytes) << file << " differs";
    }
    EXPECT_EQ(metrics(run), metrics(straight));
}

// The program in a process of its own, which receives signals.
class Process {
public:
    Process(const std::string& arguments, const std::string& output) {
        std::vector<std::string> words = {TRAIN_PROGRAM};
        std::istringstream in(with_tiny_model(arguments));
        for (std::string word; in >> word;) words.push_back(word);
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        argv.push_back(nullptr);
        pid_ = fork();
        if (pid_ == 0) {
            const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
            dup2(file, STDOUT_FILENO);
            dup2(file, STDERR_FILENO);
            execv(argv[0], argv.data());
            _exit(127);
        }
    }
    ~Process() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
    }
    bool running() {
        int status = 0;
        if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
            pid_ = -1;
            status_ = status;
        }
        return pid_ > 0;
    }
    // A process that has ended by itself gets no signal: kill(-1) would reach every process of the system.
    void send(int signal) {
        if (pid_ > 0) kill(pid_, signal);
    }
    int wait() {
        if (pid_ > 0) waitpid(pid_, &status_, 0);
        pid_ = -1;
        return status_;
    }

private:
    pid_t pid_ = -1;
    int status_ = 0;
};

int last_step(const std::string& run) {
    const std::string text = read_file(metrics_file(run));
    const size_t at = text.rfind("\"kind\":\"train\",\"step\":");
    return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + 22);
}

// The temporary folders of checkpoints that are being written, or were being written when the run was killed.
std::set<std::string> unfinished(const std::string& run) {
    std::set<std::string> names;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(checkpoints_folder(run), none)) {
        const std::string name = entry.path().filename();
        if (name.find(".tmp-") != std::string::npos) names.insert(name);
    }
    return names;
}

bool has_new(const std::set<std::string>& names, const std::set<std::string>& before) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return !before.contains(name); });
}

void sleep_ms(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

class Killed : public Resume, public testing::WithParamInterface<const char*> {};

TEST_P(Killed, AtRandomMomentsEndsAsIfNothingHadHappened) {
    const std::string options =
        fmt::format("--dtype {} --steps {} --checkpoint-every 4 --keep 3 --out ", GetParam(), steps);
    const std::string straight = folder / "straight", run = folder / "killed";
    ASSERT_EQ(Process(options + straight, folder / "out").wait(), 0) << read_file(folder / "out");

    const unsigned seed = std::random_device()();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto up_to = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
    int in_writing = 0, repeated = 0;
    bool saved = false;
    for (int i = 1; i <= kills; i++) {
        const std::set<std::string> before = unfinished(run);
        Process process(options + run + " --resume auto", folder / "out");
        // Well before the end, which a fast machine reaches within milliseconds.
        const int aim = i * (steps * 3 / 4) / (kills + 1);
        const auto before_step = [&](int step) { return process.running() && last_step(run) < step; };
        if (i % 5 == 0) {  // while it starts, or resumes from a checkpoint
            const auto moment =
                std::chrono::steady_clock::now() + std::chrono::duration<double, std::milli>(up_to(100));
            while (before_step(aim + 5) && std::chrono::steady_clock::now() < moment) sleep_ms(0.3);
        } else if (i % 5 == 1) {  // while it writes a checkpoint
            while (before_step(aim + 5) && !has_new(unfinished(run), before)) sleep_ms(0.05);
            if (random() % 2) sleep_ms(up_to(1));
        } else {
            while (before_step(aim)) sleep_ms(0.3);
            sleep_ms(up_to(3));
        }
        process.send(SIGKILL);
        const int status = process.wait();
        const bool killed = WIFSIGNALED(status);
        ASSERT_TRUE(killed || status == 0) << "kill " << i << ": " << read_file(folder / "out");
        in_writing += has_new(unfinished(run), before);
        // If other work delayed the kills, or the most important of them, all of them are repeated.
        if (!killed || (i == kills && in_writing == 0)) {
            ASSERT_LT(++repeated, 20) << (killed ? "no kill met the writing of a checkpoint"
                                                 : "the run is always over before its kill");
            fs::remove_all(run);
            saved = false;
            i = 0;
            continue;
        }
        // Every kill leaves a checkpoint that can be loaded, if there was one before, and no incomplete
        // folder under a checkpoint's name.
        const std::optional<std::string> newest =
            newest_checkpoint(run, [](const std::string& damage) { ADD_FAILURE() << damage; });
        EXPECT_TRUE(newest || !saved);
        saved = newest.has_value();
    }
    ASSERT_EQ(Process(options + run + " --resume auto", folder / "out").wait(), 0)
        << read_file(folder / "out");
    expect_same_end(run, straight);
    for (const auto& entry : fs::recursive_directory_iterator(run)) {
        EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path() << " is left";
    }
    EXPECT_LE(checkpoint_folders(run).size(), 5u);  // three newest, and the best validated one
}
INSTANTIATE_TEST_SUITE_P(Resume, Killed, testing::Values("fp32", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Resume, StoppedBySignalsEndsAsIfNothingHadHappened) {
    // Samples long enough for signals to meet them too.
    const std::string options =
        fmt::format("--steps {} --sample-every 3 --sample-tokens {} --checkpoint-every 15 --out ",
                    simt::checked ? 16 : 80, simt::checked ? 3 : 60);
    const std::string straight = folder / "straight", run = folder / "stopped";
    ASSERT_EQ(Process(options + straight, folder / "out").wait(), 0) << read_file(folder / "out");
    std::mt19937 random(7);
    int stopped = 0;
    for (int i = 1; i <= 4; i++) {
        const int begun = last_step(run);
        Process process(options + run + " --resume auto", folder / "out");
        while (process.running() && last_step(run) < begun + 3) sleep_ms(0.1);
        sleep_ms(static_cast<double>(random() % 5));
        if (!process.running()) break;  // the machine was too fast for the kill
        stopped++;
        process.send(i % 2 ? SIGTERM : SIGINT);
        ASSERT_EQ(process.wait(), 0) << read_file(folder / "out");
        EXPECT_EQ(read_state(newest_of(run)).step, last_step(run))
            << "the step that the signal met was not saved";
    }
    EXPECT_GE(stopped, 1);
    ASSERT_EQ(Process(options + run + " --resume auto", folder / "out").wait(), 0)
        << read_file(folder / "out");
    expect_same_end(run, straight);
}

// The signal came twice, from SLURM and from mpirun, and the second must not end the program while it
// writes its checkpoint.
TEST_F(Resume, SlurmsWarningEndsTheRunWithACheckpoint) {
    const std::string run = folder / "run";
    Process process("--steps 1000000 --checkpoint-every 1000000 --out " + run, folder / "out");
    while (process.running() && last_step(run) < 2) sleep_ms(1);
    for (int i = 0; i < 2; i++) process.send(SIGUSR1);
    ASSERT_EQ(process.wait(), 0) << read_file(folder / "out");
    EXPECT_NE(read_file(folder / "out").find("stopped by a signal"), std::string::npos);
    EXPECT_EQ(read_state(newest_of(run)).step, last_step(run));
}

// The signal has to come after the data was read and before the first step, while the peak is measured;
// another moment ends the run in another way, and the next delay is tried.
TEST_F(Resume, ARunThatIsStoppedBeforeItsFirstStepSaysHowToBeginItAgain) {
    const std::string run = folder / "run";
    std::string output;
    for (const double delay_ms : {30, 60, 15, 120, 5, 240}) {
        fs::remove_all(run);
        Process process("--steps 3 --out " + run, folder / "out");
        while (process.running() && read_file(folder / "out").find("schedule:") == std::string::npos)
            sleep_ms(1);
        sleep_ms(delay_ms);
        process.send(SIGTERM);
        process.wait();
        output = read_file(folder / "out");
        if (output.find("stopped by a signal") != std::string::npos && !fs::exists(run + "/checkpoints"))
            break;
    }
    EXPECT_NE(
        output.find("; it has no checkpoint yet, and --resume auto --out " + run + " begins it again\n"),
        std::string::npos)
        << output;
    expect_success(train("--steps 3 --resume auto --out " + run));
    EXPECT_EQ(last_step(run), 3);
}

// `timeout`, torchrun, SLURM and Ctrl-C through a launcher send one request as two signals. A step takes
// longer than the time between them.
TEST_F(Resume, OneRequestThatCameAsTwoSignalsKilledTheRunWithoutACheckpoint) {
    const std::string slow = simt::checked ? " --total-batch 128" : " --total-batch 96000";
    for (const auto& [first, second] :
         {std::pair{SIGTERM, SIGTERM}, std::pair{SIGINT, SIGINT}, std::pair{SIGINT, SIGTERM}}) {
        for (const int gap_ms : {0, 10, 30, 300}) {
            const std::string run = folder / fmt::format("{}_{}_{}", first, second, gap_ms);
            Process process("--steps 1000000 --checkpoint-every 1000000 --out " + run + slow, folder / "out");
            while (process.running() && last_step(run) < 1) sleep_ms(1);
            process.send(first);
            sleep_ms(gap_ms);
            process.send(second);
            ASSERT_EQ(process.wait(), 0) << read_file(folder / "out");
            EXPECT_NE(read_file(folder / "out").find("stopped by a signal"), std::string::npos);
            EXPECT_EQ(read_state(newest_of(run)).step, last_step(run));
        }
    }
}

TEST_F(Resume, ASecondRequestASecondLaterEndsTheRunAtOnce) {
    for (const int signal : {SIGINT, SIGTERM}) {
        const std::string run = folder / std::to_string(signal);
        const std::string slow = simt::checked ? " --total-batch 256" : " --total-batch 640000";
        Process process("--steps 1000000 --out " + run + slow, folder / "out");
        while (process.running() && last_step(run) < 1) sleep_ms(1);
        sleep_ms(20);
        const auto begin = std::chrono::steady_clock::now();
        process.send(signal);
        sleep_ms(50);
        process.send(SIGSTOP);  // so that the step lasts longer than the second on any machine
        sleep_ms(1000);
        ASSERT_TRUE(process.running()) << "a step was too short";
        process.send(signal);
        process.send(SIGCONT);
        const int status = process.wait();
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    }
}

// Both the kernel and the shell may send it.
TEST_F(Resume, ADroppedTerminalEndsTheRunWithACheckpointUnlessItIsIgnored) {
    for (const bool ignored : {false, true}) {
        const std::string run = folder / (ignored ? "ignored" : "run");
        const auto before = std::signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);  // as nohup passes it on
        Process process("--steps 1000000 --checkpoint-every 1000000 --out " + run, folder / "out");
        std::signal(SIGHUP, before);
        while (process.running() && last_step(run) < 2) sleep_ms(1);
        for (int i = 0; i < 2; i++) process.send(SIGHUP);
        if (ignored) {
            const int step = last_step(run);
            while (process.running() && last_step(run) < step + 3) sleep_ms(1);
            EXPECT_TRUE(process.running());
            process.send(SIGTERM);
        }
        ASSERT_EQ(process.wait(), 0) << read_file(folder / "out");
        EXPECT_EQ(read_state(newest_of(run)).step, last_step(run));
    }
}

// Its checkpoint records that the evaluation is missing. The run that repeats it must record that, or the
// run never counts as complete.
TEST_F(Resume, ALastStepWhoseEvaluationWasBrokenOffIsCompleteOnceItIsDoneAgain) {
    const std::string options = "--steps 4 --out ", run = folder / "run", straight = folder / "straight",
                      last = checkpoint_folder(run, 4);
    for (const std::string& out : {run, straight}) expect_success(train(options + out));
    TrainingState state = read_state(last);
    state.evaluated = false;
    state.val_loss.reset();
    fs::remove(last + "/" + state_file_name);
    write_state(last, state);

    expect_success(train(options + run + " --resume auto"));
    const TrainingState now = whole_checkpoint(last), expected = read_state(checkpoint_folder(straight, 4));
    EXPECT_TRUE(now.evaluated);
    EXPECT_EQ(now.step, 4);
    EXPECT_EQ(now.optimizer_step, expected.optimizer_step);
    EXPECT_EQ(now.skipped, expected.skipped);
    EXPECT_EQ(now.outlier_detector, expected.outlier_detector);
    EXPECT_EQ(now.val_loss, expected.val_loss);
    EXPECT_TRUE(unfinished(run).empty());
    expect_same_end(run, straight);
    const ProgramResult again = train(options + run + " --resume auto");
    expect_success(again);
    EXPECT_NE(again.output.find("nothing is left to do"), std::string::npos) << again.output;
}

// A given checkpoint is resumed in another folder: the run branches off, with every optimizer's state.
class Optimizers : public Resume, public testing::WithParamInterface<const char*> {};
TEST_P(Optimizers, GoOnWithTheSameBits) {
    const std::string options = fmt::format("--steps 6 --checkpoint-every 3 --keep 9 {} --out ", GetParam());
    const std::string straight = folder / "straight", branch = folder / "branch";
    expect_success(train(options + straight));
    expect_success(train(options + branch + " --resume " + checkpoint_folder(straight, 3)));
    expect_same_end(branch, straight);
    EXPECT_EQ(checkpoint_folders(straight).size(), 2u);
    EXPECT_EQ(checkpoint_folders(branch).size(), 1u);
}
INSTANTIATE_TEST_SUITE_P(Resume, Optimizers,
                         testing::Values("--optimizer adamw", "--optimizer adam --weight-decay 0.1",
                                         "--optimizer sgd --lr 0.1",
                                         "--optimizer sgd --lr 0.1 --momentum 0.9 --nesterov",
                                         "--optimizer rmsprop", "--optimizer rmsprop --momentum 0.5",
                                         "--dtype bf16 --recompute block --head-chunks 3"));

// A run that was killed in its last validation lost all steps since the checkpoint before.
TEST_F(Resume, TheLastCheckpointDoesNotWaitForItsValidation) {
    const std::string options =
        fmt::format("--steps 4 --val-steps {} --sample-every 0 --out ", simt::checked ? 40 : 0);
    const std::string run = folder / "run", straight = folder / "straight", last = checkpoint_folder(run, 4);
    expect_success(train(options + straight));
    {
        Process process(options + run, folder / "out");
        while (process.running() && !fs::exists(last)) sleep_ms(1);
        ASSERT_TRUE(process.running()) << "the checkpoint waited for the validation";
        process.send(SIGKILL);
        process.wait();
    }
    EXPECT_TRUE(metrics_of(run, "val").empty());
    const TrainingState killed = whole_checkpoint(last);
    EXPECT_FALSE(killed.evaluated);
    EXPECT_EQ(killed.val_loss, std::nullopt);
    expect_success(train(options + run + " --resume auto"));
    const TrainingState now = whole_checkpoint(last), expected = read_state(checkpoint_folder(straight, 4));
    EXPECT_TRUE(now.evaluated);
    EXPECT_TRUE(now.val_loss && now.val_loss == expected.val_loss);
    expect_same_end(run, straight);
}

TEST_F(Resume, DamagedCheckpointsArePassedOverAndSetAside) {
    const std::string options = "--schedule constant --checkpoint-every 3 --keep 9 --out ";
    expect_success(train(options + folder / "straight --steps 9"));
    expect_success(train(options + folder / "run --steps 6"));
    const std::string damaged = checkpoint_folder(folder / "run", 6),
                      optimizer = damaged + "/optimizer_0000.safetensors";
    std::string bytes = read_file(optimizer);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    std::ofstream(optimizer, std::ios::binary) << bytes;
    // an incomplete line
    std::ofstream(metrics_file(folder / "run"), std::ios::app) << "{\"kind\":\"train\",\"step\":7,\"lo";

    const ProgramResult result = train(options + folder / "run --steps 9 --resume auto");
    expect_success(result);
    EXPECT_NE(result.output.find("step 6 is passed over: " + optimizer), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("continuing from step 3"), std::string::npos) << result.output;
    EXPECT_TRUE(fs::exists(damaged + ".damaged"));
    EXPECT_TRUE(fs::exists(damaged + "/state.json"));  // written again on the way
    std::vector<nlohmann::json> lines = metrics(folder / "run");
    EXPECT_EQ(lines, metrics(folder / "straight"));
    EXPECT_EQ(read_file(newest_of(folder / "run") + "/model.safetensors"),
              read_file(newest_of(folder / "straight") + "/model.safetensors"));
}

TEST_F(Resume, ADamagedRunIsRefused) {
    expect_success(train("--steps 2 --out " + folder / "run"));
    fs::remove(checkpoint_folder(folder / "run", 2) + "/config.json");
    const ProgramResult result = train("--steps 4 --resume auto --out " + folder / "run");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find("none of its 1 checkpoints is whole"), std::string::npos) << result.errors;
    EXPECT_EQ(last_step(folder / "run"), 2);
}

TEST_F(Resume, AnotherModelOrDataSetIsRefusedByName) {
    expect_success(train("--steps 4 --out " + folder / "run"));
    const std::string text = folder.write("other.txt", std::string(5000, 'x')),
                      before = read_file(metrics_file(folder / "run"));
    const auto refused = [&](const std::string& arguments, const std::vector<std::string>& said) {
        const ProgramResult result = train("--steps 8 --resume auto --out " + folder / "run " + arguments);
        EXPECT_EQ(result.exit_code, 2) << arguments << result.output;
        EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
        for (const std::string& words : said)
            EXPECT_NE(result.errors.find(words), std::string::npos) << result.errors;
        EXPECT_EQ(read_file(metrics_file(folder / "run")), before);
    };
    refused("--layers 2 --vocab 200 --tokenizer byte",
            {"--layers 2 instead of 1", "--vocab 200 instead of 256"});
    refused("--seq-len 4 --batch-size 2", {"--seq-len 4 instead of"});
    refused("--total-batch 128 --seed 5", {"--total-batch 128 instead of", "--seed 5 instead of 1337"});
    refused("--data-order file", {"--data-order file instead of shuffled"});
    refused("--optimizer sgd", {"--optimizer sgd instead of adamw"});
    refused("--train-data " + text, {"--train-data 4500 tokens in 1 file", "instead of 1003854 tokens"});
}

// Versions up to November 2026 took the files sorted by name, each once, whatever their order on the
// command line.
TEST_F(Resume, ARunOnShardsThatAnOlderVersionSortedGoesOn) {
    for (const char* name : {"a.bin", "b.bin"}) {
        TokenShardWriter shard(folder / name);
        shard.append(std::vector<uint16_t>(2000, static_cast<uint16_t>(name[0])));
        shard.commit();
    }
    const std::string run = folder / "run", a = folder / "a.bin", b = folder / "b.bin";
    expect_success(train("--train-data " + a + " " + b +
                         " --schedule constant --val-every 0 --sample-every 0 --steps 4 --out " + run));
    const ProgramResult goes_on =
        train(fmt::format("--train-data {} {} {} --schedule constant --val-every 0 --sample-every 0 --steps "
                          "8 --resume auto --out {}",
                          b, a, b, run));
    expect_success(goes_on);
    EXPECT_NE(goes_on.output.find("the run began with its files sorted by name, each once, and goes on so"),
              std::string::npos)
        << goes_on.output;
    expect_success(train("--train-data " + a + " " + b +
                         " --schedule constant --val-every 0 --sample-every 0 --steps 8 --out " +
                         folder / "straight"));
    expect_same_end(run, folder / "straight");
    // A list of files is part of the run, and a resumed run takes it from there.
    expect_success(train("--schedule constant --val-every 0 --sample-every 0 --steps 10 --resume " + run));
}

// Texts are edited easily, and a checksum of some of their tokens would miss it. A shard of a text's
// tokens is the same data.
TEST_F(Resume, ATextThatWasEditedIsNoticed) {
    fs::create_directory(folder / "texts");
    for (const char* data : {"texts", "texts/a.md"}) {
        const std::string run = folder / "run", shard_path = folder / "x.bin", as_it_was(100'000, 'x');
        std::string edited = as_it_was;
        edited[5000] = 'y';
        folder.write("texts/a.md", as_it_was);
        folder.write("texts/b.md", as_it_was);
        const std::string rest = " --schedule constant --sample-every 0 --resume auto --out " + run,
                          options = "--train-data " + folder / data + rest;
        expect_success(train(options + " --steps 2"));
        expect_success(train(options + " --steps 4"));
        folder.write("texts/a.md", edited);
        const ProgramResult refused = train(options + " --steps 6");
        EXPECT_EQ(refused.exit_code, 2);
        EXPECT_NE(refused.errors.find("belongs to another run: --train-data "), std::string::npos)
            << refused.errors;
        folder.write("texts/a.md", as_it_was);
        TokenShardWriter shard(shard_path);  // the first nine tenths of the bytes
        shard.append(std::vector<uint16_t>(data == std::string("texts") ? 180'000 : 90'000, 'x'));
        shard.commit();
        expect_success(train("--train-data " + shard_path + rest + " --steps 6 --val-every 0"));
        for (const std::string& made : {run, shard_path}) fs::remove_all(made);
    }
}

// The rules of older versions, tried next, would find no validation data.
TEST_F(Resume, OtherDataAreRefusedForWhatTheyAreToday) {
    const std::string shards = folder / "shards", run = folder / "run";
    std::filesystem::create_directory(shards);
    const auto write = [&](const std::string& name, uint16_t token) {
        TokenShardWriter shard(shards + "/" + name);
        shard.append(std::vector<uint16_t>(2000, token));
        shard.commit();
    };
    write("train.bin", 1);
    write("val.bin", 2);
    const std::string options =
        "--train-data " + shards + " --schedule constant --sample-every 0 --val-every 2 --out " + run;
    expect_success(train(options + " --steps 2"));
    write("train.bin", 3);
    const ProgramResult other = train(options + " --steps 4 --resume auto");
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_NE(other.errors.find("belongs to another run: --train-data "), std::string::npos) << other.errors;
}

TEST(CheckSameRun, ChecksumsOfTextsAreComparedWhereBothAreKnown) {
    ResumePoint from;
    from.checkpoint = "run/checkpoints/step_00000004";
    from.state.identity = {{"train-data", "3600 tokens"}};
    nlohmann::json identity = {{"train-data", "3600 tokens"}, {"train-texts", "texts, checksum 1"}};
    EXPECT_NO_THROW(check_same_run(from, identity, 1, {}, note_on_stderr));
    from.state.identity = identity;
    EXPECT_NO_THROW(check_same_run(from, identity, 1, {}, note_on_stderr));
    identity["train-texts"] = nullptr;  // shards of the same tokens
    EXPECT_NO_THROW(check_same_run(from, identity, 1, {}, note_on_stderr));
    identity["train-texts"] = "texts, checksum 2";
    EXPECT_THROW(check_same_run(from, identity, 1, {}, note_on_stderr), UsageError);
}

TEST(CheckSameRun, SeveralTextsOfAnOlderVersionAreRefusedWithTheReason) {
    ResumePoint from;
    from.checkpoint = "run/checkpoints/step_00000004";
    from.state.identity = {{"train-data", "3600 tokens in 2 files, checksum 0123456789abcdef"}};
    const nlohmann::json joined = {{"train-data", "3600 tokens in 1 file, checksum fedcba9876543210"}};
    const auto refusal = [&](size_t texts) {
        return message_of<UsageError>([&] { check_same_run(from, joined, texts, {}, note_on_stderr); });
    };
    EXPECT_EQ(refusal(0), from.checkpoint +
                              " belongs to another run: --train-data 3600 tokens in 1 file, checksum "
                              "fedcba9876543210 instead of 3600 tokens in 2 files, checksum "
                              "0123456789abcdef; expected the same model, data and order of samples");
    EXPECT_EQ(refusal(2), refusal(0) +
                              "; if an older version began it: several texts are joined now, so such "
                              "a run cannot go on");
}

TEST_F(Resume, OtherOptionsMayChangeAndThoseThatMatterAreSaid) {
    expect_success(train("--steps 4 --out " + folder / "run"));
    const ProgramResult same = train("--steps 4 --resume auto --val-every 2 --out " + folder / "run");
    expect_success(same);
    EXPECT_NE(same.output.find("nothing is left to do"), std::string::npos) << same.output;
    const ProgramResult longer =
        train("--steps 6 --lr 0.5 --head-chunks 2 --log-every 2 --resume auto --out " + folder / "run");
    expect_success(longer);
    EXPECT_NE(
        longer.output.find("--head-chunks 2 instead of 1, --lr 0.5 instead of 0.001, --steps 6 instead of 4"),
        std::string::npos)
        << longer.output;
    EXPECT_EQ(longer.output.find("--log-every"), std::string::npos) << longer.output;
    EXPECT_EQ(last_step(folder / "run"), 6);
    EXPECT_EQ(train("--steps 5 --resume auto --out " + folder / "run").exit_code, 2);
}

TEST_F(Resume, AnEarlierCheckpointTakesTheRunBackToIt) {
    expect_success(train("--steps 6 --checkpoint-every 2 --keep 9 --out " + folder / "run"));
    expect_success(train("--steps 6 --checkpoint-every 2 --keep 9 --out " + folder / "straight"));
    const ProgramResult result =
        train("--steps 6 --checkpoint-every 2 --keep 9 --resume " + checkpoint_folder(folder / "run", 2));
    expect_success(result);
    EXPECT_TRUE(fs::exists(checkpoint_folder(folder / "run", 4) + ".superseded")) << result.output;
    expect_same_end(folder / "run", folder / "straight");
}

ProgramResult resume_alone(const std::string& arguments) {
    return run_program(TRAIN_PROGRAM, "--resume " + arguments);
}

TEST_F(Resume, AloneGoesOnWithTheRunsOwnOptions) {
    const std::string from_file =
                          folder.write("some.txt", "lr = 0.003\nschedule = linear\nnesterov = true\n"),
                      straight = folder / "straight";
    expect_success(
        train("--checkpoint-every 4 --keep 9 --tokens 512 --optimizer sgd --momentum 0.5 --seed 7 "
              "--data-order file --min-lr-fraction 0.5 "
              "--batch-size auto --device-memory 1G --recompute block --head-chunks 2 --clip 0.5 "
              "--total-batch 64 --config " +
              from_file + " --out " + straight));
    fs::remove(from_file);
    const ProgramResult result = resume_alone(checkpoint_folder(straight, 4) + " --out " + folder / "branch");
    expect_success(result);
    EXPECT_EQ(result.output.find("options that change"), std::string::npos) << result.output;
    expect_same_end(folder / "branch", straight);
    EXPECT_EQ(last_step(straight), 8);

    const ProgramResult complete = resume_alone(straight);
    expect_success(complete);
    EXPECT_NE(complete.output.find("nothing is left to do"), std::string::npos) << complete.output;
}

// Up to November 2026 a plan had more options, which every run wrote into its state.
TEST_F(Resume, OptionsThatOnlyEarlierVersionsHadAreLeftOut) {
    const std::string run = folder / "run", last = checkpoint_folder(run, 2);
    expect_success(train("--steps 2 --lr 0.003 --out " + run));
    TrainingState state = read_state(last);
    state.options.update({{"device", "H100"},
                          {"gpus-per-machine", 4},
                          {"link", "pcie4"},
                          {"network", "hdr1"},
                          {"tokens-per-second", 1000.5}});
    fs::remove(last + "/" + state_file_name);
    write_state(last, state);
    const ProgramResult result = resume_alone(run + " --steps 4");
    expect_success(result);
    EXPECT_NE(result.output.find("from here on: --steps 4 instead of 2\n"), std::string::npos)
        << result.output;
    EXPECT_EQ(last_step(run), 4);
}

TEST_F(Resume, AnOptionThatIsGivenAgainCountsInsteadOfTheRuns) {
    const std::string run = folder / "run", other_length = folder / "other_length";
    expect_success(train("--tokens 256 --total-batch 64 --lr 0.003 --out " + run));
    const std::string before = read_file(metrics_file(run));
    const ProgramResult refused = resume_alone(run + " --channels 32");
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_NE(refused.errors.find("--channels 32 instead of 16"), std::string::npos) << refused.errors;
    EXPECT_EQ(read_file(metrics_file(run)), before);

    const ProgramResult result = resume_alone(run + " --steps 6 --lr 0.5");
    expect_success(result);
    EXPECT_NE(result.output.find("from here on: --lr 0.5 instead of 0.003, --steps 6"), std::string::npos)
        << result.output;
    EXPECT_EQ(last_step(run), 6);
}

TEST_F(Resume, AloneNeedsNoModelThatTheRunBeganWith) {
    expect_success(train("--steps 2 --out " + folder / "first"));
    const std::string run = folder / "run";
    expect_success(run_program(
        TRAIN_PROGRAM,
        "--steps 2 --batch-size 2 --seq-len 8 --context 8 --val-steps 1 --sample-tokens 2 --init-from " +
            folder / "first --out " + run));
    fs::remove_all(folder / "first");
    expect_success(resume_alone(run + " --steps 3"));
    EXPECT_EQ(last_step(run), 3);
}

TEST_F(Resume, ARunWithoutACheckpointStartsAgain) {
    expect_success(train("--steps 3 --checkpoint-every 0 --out " + folder / "run"));
    EXPECT_FALSE(fs::exists(checkpoints_folder(folder / "run")));
    // no run at all: a new one
    expect_success(train("--steps 3 --out " + folder / "straight --resume auto"));
    const ProgramResult result = train("--steps 3 --resume auto --out " + folder / "run");
    expect_success(result);
    EXPECT_NE(result.output.find("it starts again from step 1"), std::string::npos) << result.output;
    expect_same_end(folder / "run", folder / "straight");
}

TEST_F(Resume, WrongPlacesAreRefused) {
    for (const std::string arguments : {"--resume auto", "--resume /nowhere", "--resume sometimes"}) {
        const ProgramResult result = train("--steps 3 " + arguments);
        EXPECT_EQ(result.exit_code, 2) << result.output;
        EXPECT_NE(result.errors.find("--resume"), std::string::npos) << result.errors;
    }
}

TEST_F(Resume, TwoProcessesDoNotWriteToOneRun) {
    const FolderLock lock(folder.path(), "training");
    const ProgramResult result = train("--steps 2 --out " + folder.path());
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find("another process is training there"), std::string::npos) << result.errors;
}

TEST_F(Resume, AFullDiskCostsTheCheckpointNotTheRun) {
    // Files may not grow beyond 10 KiB: the metrics fit, the model of 32 KiB does not.
    const ProgramResult result =
        train("--steps 6 --checkpoint-every 2 --out " + folder / "run", "cd /; ulimit -f 20");
    EXPECT_EQ(last_step(folder / "run"), 6);
    for (const int step : {2, 4, 6}) {
        EXPECT_NE(result.output.find(fmt::format("step {}: the checkpoint could not be written", step)),
                  std::string::npos)
            << result.output;
    }
    EXPECT_TRUE(fs::is_empty(checkpoints_folder(folder / "run")));
    EXPECT_EQ(result.exit_code, 1);  // the last checkpoint is missing, and the exit code must report that
    EXPECT_NE(result.errors.find("the last checkpoint could not be written"), std::string::npos)
        << result.errors;
}

TEST_F(Resume, TheNewestCheckpointIsNamedWhenTheMetricsCannotBeWritten) {
    const std::string run = folder / "run",
                      options = "--val-every 0 --sample-every 0 --checkpoint-every 2 --out " + run;
    expect_success(train("--steps 2 " + options));
    // Files may not grow beyond 80 KiB, which is enough for a checkpoint. The metrics have room for
    // another description of the run and a few steps.
    const size_t full = size_t{80} << 10, room = 2 * fs::file_size(metrics_file(run)) + 800;
    std::ofstream(metrics_file(run), std::ios::app)
        << R"({"kind":"run","padding":")" + std::string(full - room, 'x') + "\"}\n";
    const ProgramResult result = train("--steps 200 --resume auto " + options, "cd /; ulimit -f 160");
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_NE(
        result.errors.find(metrics_file(run) +
                           ": File too large; the metrics cannot be written; the last good checkpoint is " +
                           newest_of(run)),
        std::string::npos)
        << result.errors;
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
    EXPECT_GT(last_step(run), 2) << result.output;
}

TEST_F(Resume, NoCheckpointIsGoodWhenTheFirstUpdateBrokeTheWeights) {
    // A learning rate that makes every weight enormous: from the second step on no gradient is finite.
    const std::string run = folder / "run";
    const ProgramResult result = train(
        "--steps 20 --lr 1e30 --warmup 0 --checkpoint-every 1 --keep 1 --val-every 0 --sample-every 0 "
        "--max-skipped 3 --out " +
        run);
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_NE(result.errors.find("; no checkpoint is known to be good; the newest is " + run),
              std::string::npos)
        << result.errors;
}

// The update with a huge learning rate is finite, and so is the checkpoint after it, but the weights are
// useless.
TEST_F(Resume, ACheckpointWhoseUpdateBrokeTheWeightsIsNotTheLastGoodOne) {
    for (const std::string arguments :
         {"--val-every 0", "--val-every 1", "--val-every 0 --dtype bf16", "--val-every 0 --optimizer sgd"}) {
        const TemporaryFolder folder;
        const std::string run = folder / "run";
        const std::string options =
            arguments +
            " --checkpoint-every 1 --keep 1 --warmup 0 --sample-every 0 --max-skipped 3 --schedule constant "
            "--resume auto --out " +
            run;
        expect_success(train("--steps 4 " + options));
        const ProgramResult result = train("--steps 20 --lr 1e30 " + options);
        EXPECT_EQ(result.exit_code, 1) << arguments << result.output;
        EXPECT_NE(result.errors.find("the last good checkpoint is " + checkpoint_folder(run, 4) + "\n"),
                  std::string::npos)
            << result.errors;
        EXPECT_EQ(whole_checkpoint(checkpoint_folder(run, 4)).skipped, 0);
    }
}

}  // namespace
