#include "processes.h"

static std::unique_ptr<Communicator> all;

Communicator& communicator() { return *all; }

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    const Process process = this_process();
    simt::select_device(process.local_rank, process.local_size);
    all = make_communicator(process, 60);
    if (process.rank > 0)
        delete testing::UnitTest::GetInstance()->listeners().Release(
            testing::UnitTest::GetInstance()->listeners().default_result_printer());
    // The other processes report failures only.
    struct Failures : testing::EmptyTestEventListener {
        void OnTestPartResult(const testing::TestPartResult& result) override {
            if (result.failed())
                fmt::print(stderr, "rank {}: {}:{}: {}\n", communicator().rank(),
                           result.file_name() ? result.file_name() : "", result.line_number(),
                           result.message());
        }
    };
    if (process.rank > 0) testing::UnitTest::GetInstance()->listeners().Append(new Failures);
    const int status = RUN_ALL_TESTS();
    all.reset();
    return status;
}
