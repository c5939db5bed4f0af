// communicator.h: sums and copies between the processes that train together. No averages are needed,
// since dlogits already carry the whole scale.
//   NCCL with one process a GPU, MPI with several processes on CPUs; a single process needs neither. The
//   build links one of communicator_single.cpp, communicator_mpi.cpp and communicator_nccl.cpp. All
//   processes must make the same calls in the same order with the same sizes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "kernels/simt/device.h"
#include "trainer/distributed/launcher.h"

// One operation on device memory, in place.
struct Collective {
    enum Kind {
        all_reduce,  // values[i] = the sum over all processes, with the same bits on each
        // The array has size() equal parts: part rank() becomes the sum over all processes, the others keep
        // their values.
        reduce_scatter,
        all_gather,  // of size() equal parts, part r is copied from rank r
        broadcast,   // everything is copied from rank `root`
    };
    enum Element { fp32, bf16, byte };
    Kind kind;
    void* values;
    // in elements, all parts together; a multiple of size() for reduce_scatter and all_gather
    size_t count;
    Element element;
    int root = 0;

    size_t element_bytes() const { return element == fp32 ? 4 : element == bf16 ? 2 : 1; }
    size_t bytes() const { return count * element_bytes(); }
    // Bytes that this process sends: the lower bound, reached by rings and by direct exchange between all
    // pairs.
    size_t bytes_sent(int size) const {
        const size_t part = bytes() * static_cast<size_t>(size - 1) / static_cast<size_t>(size);
        return kind == all_reduce ? 2 * part : kind == broadcast ? bytes() : part;
    }
};

class Communicator {
public:
    // Operations are numbered from 1.
    using Ticket = uint64_t;

    virtual ~Communicator() = default;
    int rank() const { return process_.rank; }
    int size() const { return process_.world_size; }
    const Process& process() const { return process_; }
    double time_limit() const { return time_limit_; }  // seconds

    // Begins an operation once `stream` has finished the work queued so far. The operation runs on the
    // communicator's own stream, after earlier operations, and overlaps with later work on `stream`. Its
    // memory must not be touched until wait().
    virtual Ticket begin(const Collective& collective, stream_t stream) = 0;
    // Later work on `stream` (on the CPU: the caller) waits until this operation and all earlier ones
    // have finished. Error, naming the missing process, if an operation exceeds the time limit or a
    // process has failed.
    virtual void wait(Ticket ticket, stream_t stream) = 0;
    // Call after an error that ends this process: ends the operations in flight, which another process
    // may never join, so that their memory can be freed. The memory's contents are undefined then. Later
    // calls of begin() and wait() throw Error. Other processes get no signal; abort() ends them.
    virtual void abort_operations() = 0;
    // Ends all processes at once, including this one: for an error that occurred on this process only.
    // The others need not be inside any call.
    [[noreturn]] void abort(int exit_code) {
        end_others(exit_code);
        std::_Exit(exit_code);
    }

protected:
    explicit Communicator(const Process& process, double time_limit = 0)
        : process_(process), time_limit_(time_limit) {}
    virtual void end_others(int exit_code) = 0;

private:
    const Process process_;
    const double time_limit_;
};

// Joins the other processes of this launch. time_limit is in seconds, for each operation, from when this
// process is ready for it. Error if the others cannot be reached, or if the build has no communication
// library.
std::unique_ptr<Communicator> make_communicator(const Process& process, double time_limit);

// Describes the library in the build, for a line of output: "MPI (Open MPI 4.1.4)", "NCCL 2.28.3",
// "single process".
std::string communicator_library();

// Collective: the texts of all processes, by rank.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine);
// Collective: element-wise sums over all processes, in double precision, with the same bits on each.
std::vector<double> sum_over_processes(Communicator& communicator, const std::vector<double>& mine);
