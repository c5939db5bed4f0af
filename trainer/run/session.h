// session.h: everything that surrounds training in a run: metrics, validation, samples, checkpoints,
// signals.
#pragma once
#include <optional>
#include <string>

#include "system/error.h"
#include "system/folder_lock.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/data/input_fault.h"
#include "trainer/distributed/communicator.h"
#include "trainer/engine/model.h"
#include "trainer/run/gpu_monitor.h"
#include "trainer/run/logger.h"
#include "trainer/run/mfu.h"
#include "trainer/run/outlier_detector.h"
#include "trainer/run/prepare.h"

// Every function is called by all ranks together. Rank 0 prints, writes the metrics and generates samples.
template <class T>
class Session {
public:
    // Claims the run's folder, new or resumed, and chooses the algorithms of the matrix products. `run`
    // must outlive the session.
    Session(PreparedRun<T>& run, Communicator& communicator);

    // The next step to train, counting from 1; 0 when the run is complete or stopped by a signal.
    int next_step();
    OptimizerOptions optimizer_at(int step) const {
        return run_.options.optimizer_at(run_.schedule.at(step));
    }
    // This rank's part of a micro-step. If it cannot be read, the other ranks already wait for this one in
    // the step: it takes part with an old batch, flags() tells the others, and record() ends the run on
    // all ranks. InputFault if there are no others.
    const Batch& batch(int step, int micro);
    // This rank's flags for the step's all-reduce.
    StepFlags flags() const;
    // Vetoes the update of an outlier (--skip-loss-z, --skip-norm-z); empty without these options.
    const Veto& veto() const { return veto_; }

    // Waits for the steps up to `step`, whose updates must have begun, and writes their lines. Error if
    // too many consecutive steps were skipped. InputFault, on all ranks, if one could not read its batch.
    void record(int last);
    // True if validation, sampling or saving follows this step, so the next one must wait.
    bool must_pause(int step) const;
    // Validates, scores HellaSwag and samples when due. A signal interrupts it, and the resumed run
    // repeats it. The last step's checkpoint is begun before, since evaluation may take long or fail.
    void evaluate(int step);
    // Saves, or adds the evaluation to the checkpoint that was begun before it.
    void save_if_due(int step);
    // Waits for the last checkpoint and prints where the run is. Error if it could not be written.
    void finish();
    // Ends a run that failed: records the steps that are left and throws the error with the checkpoint to
    // continue from. After an InputFault, which all ranks have, the last finished step is saved first.
    [[noreturn]] void fail(const Error& error);

private:
    bool is_first() const { return communicator_.rank() == 0; }
    void open_folder();
    void open_checkpoints();
    void start();
    void finish_step();
    void log_step(int step, const StepResult& result);
    void log_profile(int step);
    void save();
    bool save_finished_steps();
    template <class Evaluation>
    auto show_progress(const char* what, size_t batches, const Evaluation& evaluation);
    std::string where_to_go_on() const;

    PreparedRun<T>& run_;
    Communicator& communicator_;
    const Options& options_;
    Model<T>& model_;
    std::optional<FolderLock> lock_;  // rank 0's
    std::optional<Logger> log_;
    std::optional<Mfu> mfu_;                       // rank 0's
    std::optional<CheckpointWriter> checkpoints_;  // std::nullopt with --checkpoint-every 0
    OutlierDetector outliers_;
    Veto veto_;
    std::optional<GpuMonitor> gpu_;    // constructed before the first step
    TrainingState& state_;             // state after the last recorded step
    StepFlags reduced_;                // raised by any rank at the last recorded step
    const Batch* batch_ = nullptr;     // the latest that could be read
    std::optional<InputFault> fault_;  // this rank's, while the others do not know it yet
    bool stopped_ = false;             // by a signal
    bool started_ = false;
    int step_ = 0;             // the latest step returned by next_step()
    int saved_step_ = 0;       // step of the run's latest checkpoint, complete or begun
    const int last_profiled_;  // up to this step, each step ends before the next begins
};
