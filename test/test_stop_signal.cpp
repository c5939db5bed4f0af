// Waiting for input while signals arrive. The tests send signals to this process.
#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "system/stop_signal.h"

class StopSignal : public testing::Test {
protected:
    StopSignal() {
        EXPECT_EQ(pipe(pipe_), 0);
        stop_on({SIGTERM});
        for (auto& time : stop_request_ms) time = 0;  // each test's signal is a new request
    }
    ~StopSignal() override {
        if (writer_.joinable()) writer_.join();
        wait_for_next_stop();
        for (const int end : pipe_) close(end);
        signal(SIGTERM, SIG_DFL);
    }
    // Sends a signal to the calling thread while it waits; the thread that sends it must be joined.
    static std::jthread signal_later(int signal) {
        return std::jthread([waiting = pthread_self(), signal] {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            pthread_kill(waiting, signal);
        });
    }
    void write_later() {
        writer_ = std::jthread([this] {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            EXPECT_EQ(write(pipe_[1], "a", 1), 1);
        });
    }

    int pipe_[2];
    std::jthread writer_;
};

TEST_F(StopSignal, WaitEndsWithInputAndAtTheEndOfIt) {
    write_later();
    EXPECT_TRUE(wait_for_input(pipe_[0]));
    char byte;
    EXPECT_EQ(read(pipe_[0], &byte, 1), 1);
    writer_.join();
    close(pipe_[1]);
    EXPECT_TRUE(wait_for_input(pipe_[0]));
    EXPECT_EQ(read(pipe_[0], &byte, 1), 0);
    pipe_[1] = dup(pipe_[0]);
}

// Input that comes later ends the wait of a program that has missed the signal, so that it fails in time.
TEST_F(StopSignal, ASignalJustBeforeTheWaitEndsIt) {
    std::raise(SIGTERM);
    write_later();
    EXPECT_FALSE(wait_for_input(pipe_[0]));
    char byte;
    writer_.join();
    EXPECT_EQ(read(pipe_[0], &byte, 1), 1);
}

TEST_F(StopSignal, ASignalDuringTheWaitEndsItAndIsHandledOnce) {
    const std::jthread signalled = signal_later(SIGTERM);
    write_later();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(wait_for_input(pipe_[0]));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(90));
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);  // the next one is delivered again
}

TEST_F(StopSignal, OtherSignalsDoNotEndTheWait) {
    std::signal(SIGWINCH, [](int) {});
    const std::jthread signalled = signal_later(SIGWINCH);
    write_later();
    EXPECT_TRUE(wait_for_input(pipe_[0]));
    std::signal(SIGWINCH, SIG_DFL);
}
