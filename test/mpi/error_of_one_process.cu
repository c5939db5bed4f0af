// Two processes. One has an error during the all-reduce of its gradients, which the other never joins. It
// must end at once, with its own line, and not wait for the time limit. CTest checks the line and the
// time.
#include <chrono>
#include <thread>

#include "../model.cuh"
#include "trainer/distributed/run_together.h"

int main() {
    return run_together("error_of_one_process", [](const Process& process,
                                                   std::unique_ptr<Communicator>& all) {
        constexpr int T = 8;
        simt::select_device(process.local_rank, process.local_size);
        all = make_communicator(process, 600);
        Model<float> model(
            make_family<float>({64, T, 2, 2, 16}),
            {.B = 1, .T = T, .total_batch = 2 * T, .rank = process.rank, .world_size = process.world_size});
        model.allocate(all.get());
        sum_over_processes(*all, {1.0});  // both processes are here
        if (process.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(120));
        const std::vector<int> tokens(T, 1);
        model.forward(OwnedBatch(1, T, tokens, tokens));
        model.backward(true);
        throw Error("an error of its own");
    });
}
