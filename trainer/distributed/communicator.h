// communicator.h: what the processes that train together send each other: sums and copies, nothing else,
// since dlogits carry the whole scale.
//   One process a GPU (NCCL), or several on CPUs (MPI); a lone process needs neither. The build links one of
//   communicator_single.cpp, communicator_mpi.cpp and communicator_nccl.cpp. Every process makes the same
//   calls in the same order with the same sizes.
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
        all_reduce,  // values[i] = the sum over all processes, the same bits in each
        // of size() equal parts, part rank() becomes the sum; the others are left as they were
        reduce_scatter,
        all_gather,  // of size() equal parts, part r is copied from process r
        broadcast,   // all is copied from process `root`
    };
    enum Element { fp32, bf16, byte };
    Kind kind;
    void* values;
    // of elements, in all parts together: a multiple of size() for reduce_scatter and all_gather
    size_t count;
    Element element;
    int root = 0;

    size_t element_bytes() const { return element == fp32 ? 4 : element == bf16 ? 2 : 1; }
    size_t bytes() const { return count * element_bytes(); }
    // What this process sends: the bound that is reached by rings, and by everybody sending to everybody.
    size_t bytes_sent(int size) const {
        const size_t part = bytes() * static_cast<size_t>(size - 1) / static_cast<size_t>(size);
        return kind == all_reduce ? 2 * part : kind == broadcast ? bytes() : part;
    }
};

class Communicator {
public:
    // Operations are numbered from 1 on.
    using Ticket = uint64_t;

    virtual ~Communicator() = default;
    int rank() const { return process_.rank; }
    int size() const { return process_.world_size; }
    const Process& process() const { return process_; }

    // Begins an operation when `stream` has done what it was given so far. It runs on a stream of the
    // communicator's own, after the operations begun before it, beside whatever `stream` is given later. The
    // memory is the operation's until wait().
    virtual Ticket begin(const Collective& collective, stream_t stream) = 0;
    // What `stream` is given from now on (on the CPU: the caller) waits until the operation, and all before
    // it, are over.
    // Error, naming the process that is missing, if one of them has taken longer than the time limit, or a
    // process has failed.
    virtual void wait(Ticket ticket, stream_t stream) = 0;
    // After an error that ends this process: ends the operations under way, which another process may never
    // join, so that their memory can be freed. It holds anything then. From now on begin() and wait() throw
    // Error. The others are not told: abort() does that.
    virtual void break_off() = 0;
    // Ends all processes at once, this one too: after an error that only this one knows of. The others need
    // not be in any call.
    [[noreturn]] void abort(int exit_code) {
        end_others(exit_code);
        std::_Exit(exit_code);
    }

protected:
    explicit Communicator(const Process& process) : process_(process) {}
    virtual void end_others(int exit_code) = 0;

private:
    const Process process_;
};

// Joins the other processes of this launch. time_limit: seconds that an operation may take, from when this
// process is ready for it.
// Error if they cannot be reached, or the build has no library to reach them with.
std::unique_ptr<Communicator> make_communicator(const Process& process, double time_limit);

// A line about what the build can do: "MPI (Open MPI 4.1.4)", "NCCL 2.28.3", "single process".
std::string communicator_library();

// Every process's text, by rank.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine);
// The sums over all processes of a few numbers, in double precision, the same bits in each.
std::vector<double> sum_over_processes(Communicator& communicator, const std::vector<double>& mine);
