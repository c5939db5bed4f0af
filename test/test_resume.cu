// Runs that are stopped, killed, damaged or resumed with other options, as users run them: a resumed run
// ends with the same results as an uninterrupted one.
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "kernels/simt/host_device.h"
#include "metrics_lines.h"
#include "program.h"
#include "system/folder_lock.h"
#include "trainer/checkpoint/run_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/run/resume.h"
#include "write_shard.h"

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
        std::signal(SIGHUP, SIG_DFL);  // nohup would have it ignored
    }
    static ProgramResult train(const std::string& arguments, const std::string& before = "cd /") {
        return run_program(TRAIN_PROGRAM, with_tiny_model(arguments), before);
    }
    static std::string expect_success(const ProgramResult& result) {
        EXPECT_TRUE(succeeded(result)) << result.output;
        return result.output;
    }
    TemporaryFolder folder;
    const std::string run = folder / "run", straight = folder / "straight", to_run = " --out " + run,
                      to_straight = " --out " + straight, again = to_run + " --resume auto";
};

std::string newest_of(const std::string& run) { return newest_checkpoint(run).path; }

// Lines without the varying parts: times, peaks that a busy machine measures again, and the marks of runs.
std::vector<nlohmann::json> metrics(const std::string& run) {
    std::vector<nlohmann::json> lines = metrics_of(run);
    std::erase_if(lines, [](const nlohmann::json& line) {
        return line.at("kind") == "run" || line.at("kind") == "mfu_peak";
    });
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
    const std::vector<nlohmann::json> ours = metrics(run), theirs = metrics(straight);
    for (size_t i = 0; i < std::min(ours.size(), theirs.size()); i++) ASSERT_EQ(ours[i], theirs[i]);
    EXPECT_EQ(ours.size(), theirs.size());
}

// The program in a process of its own, which receives signals.
class Process {
public:
    Process(const std::string& arguments, const std::string& output) {
        const std::string command =
            fmt::format("exec '{}' {} >'{}' 2>&1", TRAIN_PROGRAM, with_tiny_model(arguments), output);
        pid_ = fork();
        if (pid_ != 0) return;
        execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
        _exit(127);
    }
    ~Process() {
        send(SIGKILL);
        wait();
    }
    bool running() {
        if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = -1;
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

void sleep_ms(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

void wait_for_step(Process& process, const std::string& run, int step) {
    while (process.running() && last_step(run) < step) sleep_ms(0.3);
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

class Killed : public Resume, public testing::WithParamInterface<const char*> {};

TEST_P(Killed, AtRandomMomentsEndsAsIfNothingHadHappened) {
    const std::string options = fmt::format("{} --steps {} --checkpoint-every 4 --keep 3", GetParam(), steps);
    ASSERT_EQ(Process(options + to_straight, folder / "out").wait(), 0) << read_file(folder / "out");

    const unsigned seed = std::random_device()();
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto up_to = [&](double most) { return std::uniform_real_distribution<double>(0, most)(random); };
    int in_writing = 0, repeated = 0;
    bool saved = false;
    for (int i = 1; i <= kills; i++) {
        const std::set<std::string> before = unfinished(run);
        Process process(options + again, folder / "out");
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
            wait_for_step(process, run, aim);
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
        const NewestCheckpoint newest =
            newest_checkpoint(run, [](const std::string& damage) { ADD_FAILURE() << damage; });
        EXPECT_TRUE(!newest.path.empty() || !saved);
        saved = !newest.path.empty();
    }
    ASSERT_EQ(Process(options + again, folder / "out").wait(), 0) << read_file(folder / "out");
    expect_same_end(run, straight);
    for (const auto& entry : fs::recursive_directory_iterator(run)) {
        EXPECT_FALSE(says(entry.path().string(), ".tmp-")) << entry.path() << " is left";
    }
    EXPECT_LE(checkpoint_folders(run).size(), 5u);  // three newest, and the best validated one
}
INSTANTIATE_TEST_SUITE_P(Resume, Killed,
                         testing::Values("--dtype fp32", "--dtype bf16", "--kv-heads 1 --dtype bf16",
                                         "--nanochat --optimizer muon"));

TEST_F(Resume, StoppedBySignalsEndsAsIfNothingHadHappened) {
    // Samples long enough for signals to meet them too.
    const std::string options =
        fmt::format("--steps {} --sample-every 3 --sample-tokens {} --checkpoint-every 15",
                    simt::checked ? 16 : 80, simt::checked ? 3 : 60);
    ASSERT_EQ(Process(options + to_straight, folder / "out").wait(), 0) << read_file(folder / "out");
    std::mt19937 random(7);
    int stopped = 0;
    for (int i = 1; i <= 4; i++) {
        const int begun = last_step(run);
        Process process(options + again, folder / "out");
        wait_for_step(process, run, begun + 3);
        sleep_ms(static_cast<double>(random() % 5));
        if (!process.running()) break;  // the machine was too fast for the signal
        stopped++;
        process.send(i % 2 ? SIGTERM : SIGINT);
        ASSERT_EQ(process.wait(), 0) << read_file(folder / "out");
        EXPECT_EQ(read_state(newest_of(run)).step, last_step(run))
            << "the step that the signal met was not saved";
    }
    EXPECT_GE(stopped, 1);
    ASSERT_EQ(Process(options + again, folder / "out").wait(), 0) << read_file(folder / "out");
    expect_same_end(run, straight);
}

// The signal has to come after the data was read and before the first step, while the peak is measured;
// another moment ends the run in another way, and the next delay is tried.
TEST_F(Resume, ARunThatIsStoppedBeforeItsFirstStepSaysHowToBeginItAgain) {
    std::string output;
    // The run can be stopped so for some tens of milliseconds, after its data was read; a busy machine needs
    // several tries to meet them.
    for (int attempt = 0; attempt < 42; attempt++) {
        const double delay_ms = std::array{15, 10, 20, 5, 30, 2, 60}[static_cast<size_t>(attempt) % 7];
        fs::remove_all(run);
        folder.write("out", "");  // so that the words of the try before are not taken for this one's
        Process process("--steps 3" + to_run, folder / "out");
        while (process.running() && read_file(folder / "out").find("schedule:") == std::string::npos)
            sleep_ms(1);
        sleep_ms(delay_ms);
        process.send(SIGTERM);
        process.wait();
        output = read_file(folder / "out");
        if (output.find("stopped by a signal") != std::string::npos && !fs::exists(run + "/checkpoints"))
            break;
    }
    EXPECT_TRUE(
        says(output, "; it has no checkpoint yet, and --resume auto --out " + run + " begins it again\n"));
    expect_success(train("--steps 3" + again));
    EXPECT_EQ(last_step(run), 3);
}

// `timeout`, torchrun, SLURM, mpirun, dropped terminals and Ctrl-C through a launcher send one request as two
// signals. A step takes longer than the time between them, and a checkpoint is being written.
TEST_F(Resume, OneRequestThatCameAsTwoSignalsKilledTheRunWithoutACheckpoint) {
    const std::string slow = simt::checked ? " --total-batch 128" : " --total-batch 96000";
    for (const auto& [first, second] :
         {std::pair{SIGTERM, SIGTERM}, std::pair{SIGINT, SIGINT}, std::pair{SIGINT, SIGTERM},
          std::pair{SIGUSR1, SIGUSR1}, std::pair{SIGHUP, SIGHUP}}) {
        for (const int gap_ms : {0, 300, 10, 30}) {
            if (simt::checked && gap_ms == 10) break;  // it takes two seconds for each
            fs::remove_all(run);
            Process process("--steps 1000000 --checkpoint-every 1000000" + to_run + slow, folder / "out");
            wait_for_step(process, run, 1);
            process.send(first);
            sleep_ms(gap_ms);
            process.send(second);
            ASSERT_EQ(process.wait(), 0) << read_file(folder / "out");
            EXPECT_TRUE(says(read_file(folder / "out"), "stopped by a signal"));
            EXPECT_EQ(read_state(newest_of(run)).step, last_step(run));
        }
    }
}

// Handlers that ran on the stack of oneDNN's products overwrote their data, on processors with AVX2 only.
TEST_F(Resume, ManySignalsDuringAStepDoNotHarmIt) {
    const std::string slow =
        simt::checked ? " --total-batch 128" : " --channels 256 --batch-size 32 --total-batch 4096";
    for (const char* threads : {"2", "1"}) {
        fs::remove_all(run);
        setenv("OMP_NUM_THREADS", threads, 1);
        Process process("--steps 1000000" + to_run + slow, folder / "out");
        wait_for_step(process, run, 1);
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(900);
        while (std::chrono::steady_clock::now() < end) {
            process.send(SIGTERM);
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
        ASSERT_EQ(process.wait(), 0) << read_file(folder / "out");
        EXPECT_EQ(read_state(newest_of(run)).step, last_step(run));
    }
}

TEST_F(Resume, ASecondRequestASecondLaterEndsTheRunAtOnce) {
    const std::string slow = simt::checked ? " --total-batch 256" : " --total-batch 640000";
    for (const int signal : {SIGINT, SIGTERM}) {
        fs::remove_all(run);
        Process process("--steps 1000000" + to_run + slow, folder / "out");
        wait_for_step(process, run, 1);
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

// nohup passes on that hangups are ignored.
TEST_F(Resume, AnIgnoredHangupDoesNotEndTheRun) {
    const auto before = std::signal(SIGHUP, SIG_IGN);
    Process process("--steps 1000000" + to_run, folder / "out");
    std::signal(SIGHUP, before);
    wait_for_step(process, run, 2);
    process.send(SIGHUP);
    wait_for_step(process, run, last_step(run) + 3);
    EXPECT_TRUE(process.running());
}

// A given checkpoint is resumed in another folder: the run branches off, with every optimizer's state.
class Optimizers : public Resume, public testing::WithParamInterface<const char*> {};
TEST_P(Optimizers, GoOnWithTheSameBits) {
    const std::string options = fmt::format("--steps 6 --checkpoint-every 3 --keep 9 {}", GetParam());
    expect_success(train(options + to_straight));
    expect_success(train(options + to_run + " --resume " + checkpoint_folder(straight, 3)));
    expect_same_end(run, straight);
    EXPECT_EQ(checkpoint_folders(straight).size(), 2u);
    EXPECT_EQ(checkpoint_folders(run).size(), 1u);
}
INSTANTIATE_TEST_SUITE_P(Resume, Optimizers,
                         testing::Values("--optimizer adamw", "--optimizer adam --weight-decay 0.1",
                                         "--optimizer sgd --lr 0.1",
                                         "--optimizer sgd --lr 0.1 --momentum 0.9 --nesterov",
                                         "--optimizer muon", "--optimizer muon --muon-scale match-rms",
                                         "--optimizer rmsprop", "--optimizer rmsprop --momentum 0.5",
                                         "--dtype bf16 --recompute block --head-chunks 3"));

// A run that was killed in its last validation lost all steps since the checkpoint before. The run that
// repeats the validation adds it to the checkpoint, or it never counts as complete.
TEST_F(Resume, TheLastCheckpointDoesNotWaitForItsValidation) {
    const std::string validation = fmt::format(" --val-steps {} --sample-every 0", simt::checked ? 40 : 0),
                      options = "--steps 4 --checkpoint-every 2 --keep 1" + validation,
                      last = checkpoint_folder(run, 4);
    expect_success(train(options + to_straight));
    {
        Process process(options + to_run, folder / "out");
        while (process.running() && !fs::exists(last)) sleep_ms(1);
        ASSERT_TRUE(process.running()) << "the checkpoint waited for the validation";
    }
    EXPECT_TRUE(metrics_of(run, "val").empty());
    const TrainingState killed = whole_checkpoint(last);
    EXPECT_FALSE(killed.evaluated || killed.val_loss);
    const std::string half = folder.write("run/checkpoints/step_00000004/state.json.tmp-0123abcd", "{");
    expect_success(train(options + again));
    const TrainingState now = whole_checkpoint(last), expected = read_state(checkpoint_folder(straight, 4));
    EXPECT_TRUE(now.evaluated);
    EXPECT_TRUE(now.val_loss && now.val_loss == expected.val_loss);
    EXPECT_EQ(std::tuple(now.step, now.optimizer_step, now.skipped, now.outlier_detector),
              std::tuple(4, expected.optimizer_step, expected.skipped, expected.outlier_detector));
    EXPECT_FALSE(fs::exists(half));
    EXPECT_TRUE(fs::exists(checkpoint_folder(run, 2))) << "the newest good one";
    expect_same_end(run, straight);
    EXPECT_TRUE(says(expect_success(train(options + again)), "nothing is left to do"));
}

// The evaluation of a copy makes a new checkpoint, whose name another one has.
TEST_F(Resume, ACopyThatWasNotEvaluatedLeavesTheOriginalAside) {
    const std::string options = "--steps 4 --checkpoint-every 2 --val-steps 1 --sample-every 0",
                      last = checkpoint_folder(run, 4), copy = checkpoints_folder(run) + "/copy";
    expect_success(train(options + to_run));
    fs::copy(last, copy, fs::copy_options::recursive);
    TrainingState state = read_state(copy);
    state.evaluated = false;
    state.val_loss.reset();
    fs::remove(copy + "/state.json");
    write_state(copy, state);
    expect_success(train(options + " --resume " + copy));
    EXPECT_TRUE(whole_checkpoint(last).evaluated);
    EXPECT_TRUE(whole_checkpoint(last + ".superseded").evaluated);
    EXPECT_FALSE(whole_checkpoint(copy).evaluated);
}

TEST_F(Resume, DamagedCheckpointsArePassedOverAndSetAside) {
    const std::string options = "--schedule constant --checkpoint-every 3 --keep 9";
    expect_success(train(options + to_straight + " --steps 9"));
    expect_success(train(options + to_run + " --steps 6"));
    const std::string damaged = checkpoint_folder(run, 6),
                      optimizer = damaged + "/optimizer_0000.safetensors";
    std::string bytes = read_file(optimizer);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    std::ofstream(optimizer, std::ios::binary) << bytes;
    // an incomplete line
    std::ofstream(metrics_file(run), std::ios::app) << "{\"kind\":\"train\",\"step\":7,\"lo";

    const std::string output = expect_success(train(options + again + " --steps 9"));
    EXPECT_TRUE(says(output, "step 6 is passed over: " + optimizer));
    EXPECT_TRUE(says(output, "continuing from step 3"));
    EXPECT_TRUE(fs::exists(damaged + ".damaged"));
    EXPECT_TRUE(fs::exists(damaged + "/state.json"));  // written again on the way
    expect_same_end(run, straight);
}

TEST_F(Resume, AnotherModelOrDataSetIsRefusedByName) {
    expect_success(train("--steps 4" + to_run));
    const std::string text = folder.write("other.txt", std::string(5000, 'x')),
                      before = read_file(metrics_file(run));
    const auto refused = [&](const std::string& arguments, const std::vector<std::string>& said) {
        EXPECT_TRUE(is_refused(train("--steps 8 " + arguments + again), said));
        EXPECT_EQ(read_file(metrics_file(run)), before);
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
    for (const char* name : {"a.bin", "b.bin"})
        write_shard(folder, name, std::vector<Token>(2000, static_cast<Token>(name[0])));
    const std::string rest = " --schedule constant --val-every 0 --sample-every 0",
                      a = " " + folder / "a.bin", b = " " + folder / "b.bin";
    expect_success(train("--train-data" + a + b + rest + " --steps 4" + to_run));
    EXPECT_TRUE(says(expect_success(train("--train-data" + b + a + b + rest + " --steps 8" + again)),
                     "the run began with its files sorted by name, each once, and goes on so"));
    expect_success(train("--train-data" + a + b + rest + " --steps 8" + to_straight));
    expect_same_end(run, straight);
    // A list of files is part of the run, and a resumed run takes it from there.
    expect_success(train(rest + " --steps 10 --resume " + run));
}

// Texts are edited easily, and a checksum of some of their tokens would miss it. A shard of a text's
// tokens is the same data.
TEST_F(Resume, ATextThatWasEditedIsNoticed) {
    fs::create_directory(folder / "texts");
    for (const std::string data : {"texts", "texts/a.md"}) {
        const std::string as_it_was(100'000, 'x'), rest = " --schedule constant --sample-every 0" + again,
                                                   options = "--train-data " + folder / data + rest;
        for (const char* name : {"texts/a.md", "texts/b.md"}) folder.write(name, as_it_was);
        expect_success(train(options + " --steps 2"));
        expect_success(train(options + " --steps 4"));
        folder.write("texts/a.md", as_it_was.substr(0, 5000) + "y" + as_it_was.substr(5001));
        EXPECT_TRUE(is_refused(train(options + " --steps 6"), {"belongs to another run: --train-data "}));
        folder.write("texts/a.md", as_it_was);
        // the first nine tenths of the bytes
        write_shard(folder, "x.bin", std::vector<Token>(data == "texts" ? 180'000 : 90'000, 'x'));
        expect_success(train("--train-data " + folder / "x.bin" + rest + " --steps 6 --val-every 0"));
        for (const std::string& made : {run, folder / "x.bin"}) fs::remove_all(made);
    }
}

// The rules of older versions, tried next, would find no validation data.
TEST_F(Resume, OtherDataAreRefusedForWhatTheyAreToday) {
    fs::create_directory(folder / "shards");
    write_shard(folder, "shards/train.bin", std::vector<Token>(2000, 1));
    write_shard(folder, "shards/val.bin", std::vector<Token>(2000, 2));
    const std::string options =
        "--train-data " + folder / "shards" + " --schedule constant --sample-every 0 --val-every 2" + again;
    expect_success(train(options + " --steps 2"));
    write_shard(folder, "shards/train.bin", std::vector<Token>(2000, 3));
    EXPECT_TRUE(is_refused(train(options + " --steps 4"), {"belongs to another run: --train-data "}));
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
    expect_success(train("--steps 4" + to_run));
    EXPECT_TRUE(says(expect_success(train("--steps 4 --val-every 2" + again)), "nothing is left to do"));
    const std::string longer =
        expect_success(train("--steps 6 --lr 0.5 --head-chunks 2 --log-every 2" + again));
    EXPECT_TRUE(
        says(longer, "--head-chunks 2 instead of 1, --lr 0.5 instead of 0.001, --steps 6 instead of 4"));
    EXPECT_FALSE(says(longer, "--log-every"));
    EXPECT_EQ(last_step(run), 6);
    EXPECT_EQ(train("--steps 5" + again).exit_code, 2);
}

TEST_F(Resume, AnEarlierCheckpointTakesTheRunBackToIt) {
    const std::string options = "--steps 6 --checkpoint-every 2 --keep 9";
    for (const std::string& out : {to_run, to_straight}) expect_success(train(options + out));
    expect_success(train(options + " --resume " + checkpoint_folder(run, 2)));
    EXPECT_TRUE(fs::exists(checkpoint_folder(run, 4) + ".superseded"));
    expect_same_end(run, straight);
}

ProgramResult resume_alone(const std::string& arguments) {
    return run_program(TRAIN_PROGRAM, "--resume " + arguments);
}

TEST_F(Resume, AloneGoesOnWithTheRunsOwnOptions) {
    const std::string from_file =
        folder.write("some.txt", "lr = 0.003\nschedule = linear\nnesterov = true\n");
    expect_success(
        train("--checkpoint-every 4 --keep 9 --tokens 512 --optimizer sgd --momentum 0.5 --seed 7 "
              "--data-order file --min-lr-fraction 0.5 "
              "--batch-size auto --device-memory 1G --recompute block --head-chunks 2 --clip 0.5 "
              "--total-batch 64 --config " +
              from_file + to_straight));
    fs::remove(from_file);
    const std::string output = expect_success(resume_alone(checkpoint_folder(straight, 4) + to_run));
    EXPECT_FALSE(says(output, "options that change"));
    expect_same_end(run, straight);
    EXPECT_EQ(last_step(straight), 8);
    EXPECT_TRUE(says(expect_success(resume_alone(straight)), "nothing is left to do"));
}

// Up to November 2026 a plan had more options, which every run wrote into its state.
// Some defaults depend on the optimizer, the schedule or --lr.
TEST_F(Resume, OptionsOfMuonFollowTheRunAndWhatIsGiven) {
    const auto options_after = [&](int steps, const std::string& arguments) {
        expect_success(resume_alone(folder / "run" + fmt::format(" --steps {} {}", steps, arguments)));
        return whole_checkpoint(checkpoint_folder(run, steps)).options;
    };
    expect_success(train("--steps 2 --optimizer muon --cooldown-shape sqrt" + to_run));
    nlohmann::json options = options_after(3, "--schedule wsd");
    EXPECT_EQ(options["cooldown"], 0.7);
    EXPECT_EQ(options["cooldown-shape"], "sqrt");
    options_after(4, "--schedule cosine");
    options = options_after(5, "--schedule wsd");
    EXPECT_EQ(options["cooldown"], 0.7);
    EXPECT_EQ(options["cooldown-shape"], "linear");
    EXPECT_EQ(options_after(6, "--lr 0.01")["embedding-lr"], 0.003);
    for (const char* other : {"adamw", "sgd"})
        EXPECT_TRUE(is_refused(resume_alone(folder / "run" + fmt::format(" --optimizer {}", other)),
                               {fmt::format("--optimizer {} instead of muon", other)}));
    EXPECT_TRUE(is_refused(resume_alone(folder / "run" + " --muon-scale match-rms"),
                           {"--muon-scale match-rms without --lr: the run's --lr 0.01 suits"}));
}

TEST_F(Resume, RatesOfMatchRmsFollowLr) {
    expect_success(train("--steps 2 --optimizer muon --muon-scale match-rms --head-lr 0.002" + to_run));
    expect_success(resume_alone(folder / "run" + " --steps 3 --lr 0.0005"));
    const nlohmann::json options = whole_checkpoint(checkpoint_folder(run, 3)).options;
    EXPECT_EQ(options["embedding-lr"], 0.0005);
    EXPECT_EQ(options["vector-lr"], 0.0005);
    EXPECT_EQ(options["head-lr"], 0.002);
    EXPECT_EQ(options["schedule"], "cosine");
}

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
    EXPECT_TRUE(says(result.output, "from here on: --steps 4 instead of 2\n"));
    EXPECT_EQ(last_step(run), 4);
}

TEST_F(Resume, AnOptionThatIsGivenAgainCountsInsteadOfTheRuns) {
    expect_success(train("--tokens 256 --total-batch 64 --lr 0.003" + to_run));
    const std::string before = read_file(metrics_file(run));
    EXPECT_TRUE(is_refused(resume_alone(run + " --channels 32"), {"--channels 32 instead of 16"}));
    EXPECT_EQ(read_file(metrics_file(run)), before);
    EXPECT_TRUE(says(expect_success(resume_alone(run + " --steps 6 --lr 0.5")),
                     "from here on: --lr 0.5 instead of 0.003, --steps 6"));
    EXPECT_EQ(last_step(run), 6);
}

TEST_F(Resume, AloneNeedsNoModelThatTheRunBeganWith) {
    expect_success(train("--steps 2" + to_straight));
    expect_success(run_program(
        TRAIN_PROGRAM,
        "--steps 2 --batch-size 2 --seq-len 8 --context 8 --val-steps 1 --sample-tokens 2 --init-from " +
            straight + to_run));
    fs::remove_all(straight);
    expect_success(resume_alone(run + " --steps 3"));
    EXPECT_EQ(last_step(run), 3);
}

// A Llama's checkpoint holds all of its sizes, so that a run goes on without an option.
TEST_F(Resume, ALlamaGoesOnWithTheSameBits) {
    expect_success(train(
        "--steps 8 --checkpoint-every 4 --keep 9 --kv-heads 1 --hidden 20 --head-size 6 --norm-eps 1e-6 "
        "--rope-theta 500 --untied" +
        to_straight));
    expect_success(resume_alone(checkpoint_folder(straight, 4) + to_run));
    expect_same_end(run, straight);
    EXPECT_TRUE(is_refused(resume_alone(run + " --steps 9 --hidden 24"), {"--hidden 24 instead of 20"}));
    EXPECT_TRUE(is_refused(train("--steps 9" + again), {"a GPT-2 instead of a Llama"}));
}

TEST_F(Resume, ANanochatGoesOnWithTheSameBits) {
    expect_success(
        train("--steps 8 --checkpoint-every 4 --keep 9 --nanochat --optimizer muon" + to_straight));
    expect_success(resume_alone(checkpoint_folder(straight, 4) + to_run));
    expect_same_end(run, straight);
    EXPECT_TRUE(is_refused(train("--steps 9 --kv-heads 2" + again), {"a Llama instead of a nanochat"}));
}

TEST_F(Resume, AQwen3GoesOnWithTheSameBits) {
    expect_success(
        train("--steps 8 --checkpoint-every 4 --keep 9 --qwen3 --kv-heads 1 --head-size 12 --optimizer muon" +
              to_straight));
    expect_success(resume_alone(checkpoint_folder(straight, 4) + to_run));
    expect_same_end(run, straight);
    EXPECT_TRUE(is_refused(train("--steps 9 --kv-heads 1" + again), {"a Llama instead of a Qwen3"}));
}

TEST_F(Resume, WrongPlacesAreRefused) {
    for (const std::string place : {"auto", "/nowhere", "sometimes"})
        EXPECT_TRUE(is_refused(train("--steps 3 --resume " + place), {"--resume " + place}));
}

TEST_F(Resume, TwoProcessesDoNotWriteToOneRun) {
    const FolderLock lock(folder.path(), "training");
    EXPECT_TRUE(is_refused(train("--steps 2 --out " + folder.path()), {"another process is training there"}));
}

TEST_F(Resume, TheNewestCheckpointIsNamedWhenTheMetricsCannotBeWritten) {
    const std::string options = "--val-every 0 --sample-every 0 --checkpoint-every 2" + again;
    expect_success(train("--steps 2 " + options));
    // Files may not grow beyond 80 KiB, which is enough for a checkpoint. The metrics have room for
    // another description of the run and a few steps.
    const size_t full = size_t{80} << 10, room = 2 * fs::file_size(metrics_file(run)) + 800;
    std::ofstream(metrics_file(run), std::ios::app)
        << R"({"kind":"run","padding":")" + std::string(full - room, 'x') + "\"}\n";
    const ProgramResult result = train("--steps 200 " + options, "cd /; ulimit -f 160");
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_TRUE(says(result.errors,
                     metrics_file(run) +
                         ": File too large; the metrics cannot be written; the last good checkpoint is " +
                         newest_of(run)));
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
    EXPECT_GT(last_step(run), 2) << result.output;
}

// With this learning rate the update is finite, and so is the checkpoint after it, but every weight is
// enormous, and no later gradient is finite.
TEST_F(Resume, ACheckpointWhoseUpdateBrokeTheWeightsIsNotTheLastGoodOne) {
    const std::string options =
        " --checkpoint-every 1 --keep 1 --warmup 0 --sample-every 0 --max-skipped 3 --schedule constant" +
        again;
    for (const std::string arguments :
         {"--val-every 0", "--val-every 1", "--val-every 0 --dtype bf16", "--val-every 0 --optimizer sgd"}) {
        fs::remove_all(run);
        expect_success(train(arguments + options + " --steps 4"));
        const ProgramResult result = train(arguments + options + " --steps 20 --lr 1e30");
        EXPECT_EQ(result.exit_code, 1) << arguments << result.output;
        EXPECT_TRUE(says(result.errors, "the last good checkpoint is " + checkpoint_folder(run, 4) + "\n"));
        EXPECT_EQ(whole_checkpoint(checkpoint_folder(run, 4)).skipped, 0);
    }
    fs::remove_all(run);  // now the first update breaks them
    const ProgramResult result = train("--val-every 0" + options + " --steps 20 --lr 1e30");
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_TRUE(says(result.errors, "; no checkpoint is known to be good; the newest is " + run));
}

}  // namespace
