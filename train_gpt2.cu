// train_gpt2.cu: the training loop.
//   text -> tokens -> DataLoader -> Model::forward -> loss -> Model::backward, which sums the gradients over
//   the processes in the last micro-step -> Model::begin_update
//   Every process runs it. Session does what surrounds training: metrics, validation, checkpoints, signals.
#include <csignal>
#include <memory>
#include <optional>

#include "kernels/simt/device.h"
#include "system/stop_signal.h"
#include "trainer/distributed/communicator.h"
#include "trainer/distributed/run_together.h"
#include "trainer/engine/dtype.h"
#include "trainer/engine/model.h"
#include "trainer/run/options.h"
#include "trainer/run/prepare.h"
#include "trainer/run/session.h"

namespace {

template <class T>
void train(const Options& options, Communicator& communicator) {
    std::optional<PreparedRun<T>> prepared = prepare<T>(options, communicator);
    if (!prepared) return;  // --plan, or the run is complete
    Model<T>& model = *prepared->model;
    const int micro_steps = prepared->loader->micro_steps();
    Session<T> run(*prepared, communicator);
    try {
        while (const int step = run.next_step()) {
            model.begin_step();
            for (int micro = 0; micro < micro_steps; micro++) {
                model.forward(run.batch(step, micro));
                // only the last micro-step reduces the gradients
                model.backward(micro + 1 == micro_steps);
            }
            model.begin_update(run.optimizer_at(step), run.flags(), run.veto());
            run.record(step - 1);  // while the device works on this step
            if (!run.must_pause(step)) continue;
            run.record(step);
            run.evaluate(step);
            run.save_if_due(step);
        }
        run.finish();
    } catch (const Error& error) { run.fail(error); }
}

void handle_signals(const Process& process) {
    stop_on({SIGINT, SIGTERM, SIGUSR1});  // SLURM can send USR1 before a job's time is over
    if (hangup_was_ignored()) std::signal(SIGHUP, SIG_IGN);
    else stop_on({SIGHUP});  // sent when the terminal closes
    if (process.rank == 0)
        answer_stop(
            "\ntrain_gpt2: stopping after this step, with a checkpoint; the same signal again, a second "
            "later, "
            "ends the run at once\n");
    // A closed standard output must not end the run; its metrics are in a file.
    std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

int main(int argc, char** argv) {
    return run_together("train_gpt2",
                        [&](const Process& process, std::unique_ptr<Communicator>& communicator) {
                            const std::optional<Options> options = parse_options(argc, argv, process);
                            if (!options) return;  // --help or --version
                            handle_signals(process);
                            simt::select_device(process.local_rank, process.local_size);
                            if (!options->plan.only) check_dtype(options->system.dtype, simt::device_info());
                            communicator = make_communicator(process, options->system.comm_timeout);
                            if (options->system.dtype == DType::bf16)
                                train<bfloat16>(*options, *communicator);
                            else train<float>(*options, *communicator);
                        });
}
