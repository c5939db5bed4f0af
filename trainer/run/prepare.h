// prepare.h: prepares everything that a run needs before it writes anything: the model with its weights,
// the data, the schedule.
//   Errors in the options, the memory plan, the data or the run's folder are found here.
#pragma once
#include <memory>
#include <optional>

#include "trainer/data/data_files.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/hellaswag.h"
#include "trainer/distributed/communicator.h"
#include "trainer/engine/model.h"
#include "trainer/run/options.h"
#include "trainer/run/peaks.h"
#include "trainer/run/resume.h"
#include "trainer/run/schedule.h"
#include "trainer/tokenizer/tokenizer.h"

template <class T>
struct PreparedRun {
    Options options;  // with the batch size that was chosen
    ResumePoint from;
    std::unique_ptr<Model<T>> model{};  // allocated, with its weights and optimizer state
    std::unique_ptr<Tokenizer> tokenizer{};
    DataSplits data{};
    std::unique_ptr<DataLoader> loader{};
    std::unique_ptr<ValidationLoader> val_loader{};  // null: no validation
    std::vector<int> text_bytes{};                   // of each token: evaluate.h
    std::unique_ptr<HellaSwag> hellaswag{};          // null: no HellaSwag
    Schedule schedule{};
    TrainingState state{};  // state at the step that the run starts from
    Peaks peaks{};          // measured only for --profile
    MatmulPeak peak{};      // rank 0's, for the MFU
};

// Called by all ranks together; rank 0 prints what the run will do. std::nullopt: there is nothing to
// train, because of --plan or because the run is complete. UsageError or Error as thrown by the parts.
template <class T>
std::optional<PreparedRun<T>> prepare(const Options& options, Communicator& communicator);

// A Note that prints its line on rank 0 only.
Note note_on_stdout(const Communicator& communicator);
