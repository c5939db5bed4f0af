// session.h: everything a training loop does besides training: metrics, validation, samples, checkpoints,
// signals.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "system/error.h"
#include "system/folder_lock.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/distributed/communicator.h"
#include "trainer/model/gpt2.h"
#include "trainer/run/gpu_monitor.h"
#include "trainer/run/logger.h"
#include "trainer/run/outlier_detector.h"
#include "trainer/run/prepare.h"

// Every function is called by all processes together. Rank 0 prints, writes the metrics and samples.
template <class T>
class Session {
public:
    // Claims the run's folder, or goes on in it, and chooses the matmuls' algorithms. `run` must outlive the
    // session.
    Session(PreparedRun<T>& run, Communicator& communicator);

    // The next step to train, counting from 1; 0 when the run is over or a signal has stopped it.
    int next_step();
    OptimizerOptions optimizer_at(int step) const {
        return run_.options.optimizer_at(run_.schedule.at(step));
    }
    // The flags that this rank adds to the step's all-reduce.
    StepFlags flags() const;
    // Refuses the update of an outlier (--skip-loss-z, --skip-norm-z); empty without these options.
    const Veto& veto() const { return veto_; }

    // Waits for the steps up to this one, whose updates must have begun, and writes their lines. Error if too
    // many steps in a row were skipped.
    void record(int last);
    // True if validation, sampling or saving follows this step, so the next one must wait.
    bool must_pause(int step) const;
    // Validates, scores HellaSwag and samples if that is due. A signal breaks it off, and the resumed run
    // does it again.
    void evaluate(int step);
    void save_if_due(int step);
    // Waits for the last checkpoint and says where the run is. Error if it could not be written.
    void finish();
    // Ends a run that failed: records what is left and throws the error with the checkpoint to go on from.
    [[noreturn]] void fail(const Error& error);

private:
    bool is_first() const { return communicator_.rank() == 0; }
    void open_folder();
    void open_checkpoints();
    void start();
    void finish_step();
    void save();
    template <class Evaluation>
    auto show_progress(const char* what, size_t batches, const Evaluation& evaluation);
    std::string where_to_go_on() const;

    PreparedRun<T>& run_;
    Communicator& communicator_;
    const Options& options_;
    GPT2<T>& model_;
    std::optional<FolderLock> lock_;  // rank 0's
    std::optional<Logger> log_;
    std::optional<CheckpointWriter> checkpoints_;  // none with --checkpoint-every 0
    OutlierDetector outliers_;
    Veto veto_;
    std::optional<GpuMonitor> gpu_;  // from the first step on
    TrainingState& state_;           // of the last recorded step
    StepFlags reduced_;              // raised by any process at the last recorded step
    bool stopped_ = false;           // by a signal
    bool started_ = false;
    int step_ = 0;             // the latest that next_step() gave
    const int last_profiled_;  // up to this step, each is over before the next begins
};
