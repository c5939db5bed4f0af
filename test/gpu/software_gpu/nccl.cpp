// nccl.cpp: replaces NCCL between the software GPUs of processes on one machine
//   https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/. Rank 0 listens at a Unix socket without a
//   file, whose name is the communicator's id, and passes shared memory to all ranks. Each collective goes
//   through that memory when its turn in the stream comes, in rounds that wait for every rank. All of this
//   vanishes with the processes. Sums are added in rank order. Sums of bf16 are rounded at every addition,
//   as in NCCL's rings with two values at a time, which is the least exact that a GPU may be. Ranks that
//   call different collectives are a finding. If a rank ends or aborts, the communicator has an error
//   (ncclCommGetAsyncError). 10 seconds later that ends the process, unless it has aborted the communicator.
//   Otherwise a rank waits for the others as long as its communicator allows.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <nccl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/simt/bfloat16.h"
#include "stream.h"
#include "trace.h"

namespace {

using software_gpu::Fault;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// The error that a function of the library returns.
struct Error : std::runtime_error {
    ncclResult_t result;
    Error(ncclResult_t result, const std::string& message) : std::runtime_error(message), result(result) {}
};

std::mutex last_error_mutex;
std::string last_error_text;

void set_last_error(const std::string& text) {
    const std::lock_guard lock(last_error_mutex);
    last_error_text = text;
}

template <class Body>
ncclResult_t reported(const Body& body) {
    try {
        body();
        return ncclSuccess;
    } catch (const Error& error) {
        set_last_error(error.what());
        return error.result;
    }
}

void needed(const ncclComm* comm) {
    if (!comm) throw Error(ncclInvalidArgument, "the communicator is NULL");
}

// ----------------------------------------------------------------------------------------------------
// meeting

class File {
public:
    explicit File(int descriptor = -1) : descriptor_(descriptor) {}
    File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    File& operator=(File&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    ~File() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    operator int() const { return descriptor_; }

private:
    int descriptor_;
};

// A rank sends Hello, and rank 0 answers with Welcome; the shared memory is attached unless Welcome has an
// error.
struct Hello {
    int size, rank, device;
};
struct Welcome {
    ncclResult_t result = ncclSuccess;
    char message[200] = {};
};

constexpr std::string_view id_begin = "software-gpu:";

std::string text_of(const ncclUniqueId& id) {
    return std::string(id.internal, strnlen(id.internal, sizeof(id.internal)));
}

// A name without a file; it lives as long as its socket.
std::pair<sockaddr_un, socklen_t> address_of(const ncclUniqueId& id) {
    const std::string name = text_of(id);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // behind a zero
    return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

File new_socket() {
    File made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (made < 0) throw Error(ncclSystemError, fmt::format("socket: {}", std::strerror(errno)));
    return made;
}

void wait_readable(int file) {
    pollfd wanted{file, POLLIN, 0};
    if (poll(&wanted, 1, -1) <= 0)
        throw Error(ncclSystemError, fmt::format("poll: {}", std::strerror(errno)));
}

void send_with(int to, const Welcome& welcome, int memory) {
    iovec content{const_cast<Welcome*>(&welcome), sizeof(welcome)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    if (memory >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        *header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        std::memcpy(CMSG_DATA(header), &memory, sizeof(memory));
    }
    sendmsg(to, &message, MSG_NOSIGNAL);
}

File receive_memory(int from) {
    Welcome welcome;
    iovec content{&welcome, sizeof(welcome)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != sizeof(welcome))
        throw Error(ncclRemoteError, "rank 0 ended while the ranks met");
    if (welcome.result != ncclSuccess) throw Error(welcome.result, welcome.message);
    int memory = -1;
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&message))
        std::memcpy(&memory, CMSG_DATA(header), sizeof(memory));
    return File(memory);
}

void check_hello(const Hello& hello, const std::vector<Hello>& others) {
    const Hello& first = others[0];
    if (hello.size != first.size)
        throw Error(ncclInvalidUsage,
                    fmt::format("rank {} expects {} ranks, rank 0 {}", hello.rank, hello.size, first.size));
    for (const Hello& other : others) {
        if (other.rank == hello.rank)
            throw Error(ncclInvalidUsage, fmt::format("two processes are rank {}", hello.rank));
        if (other.device == hello.device)
            throw Error(ncclInvalidUsage,
                        fmt::format("Duplicate GPU detected : rank {} and rank {} both on CUDA device {}",
                                    other.rank, hello.rank, hello.device));
    }
}

// Waits for the others, and sends them the memory or the error.
void welcome_others(const ncclUniqueId& id, const Hello& own, int memory) {
    const File listening = new_socket();
    const auto [address, length] = address_of(id);
    if (bind(listening, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        listen(listening, own.size) != 0)
        throw Error(ncclSystemError, fmt::format("{}: {}", text_of(id), std::strerror(errno)));
    std::vector<Hello> hellos = {own};
    std::vector<File> others;
    const auto answer = [&](const Welcome& welcome, int with) {
        for (const File& other : others) send_with(other, welcome, with);
    };
    try {
        while (hellos.size() < static_cast<size_t>(own.size)) {
            wait_readable(listening);
            others.emplace_back(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
            wait_readable(others.back());
            Hello hello{};
            if (recv(others.back(), &hello, sizeof(hello), 0) != sizeof(hello))
                throw Error(ncclRemoteError, "a rank ended while the ranks met");
            check_hello(hello, hellos);
            hellos.push_back(hello);
        }
    } catch (const Error& error) {
        Welcome refusal{.result = error.result};
        std::strncpy(refusal.message, error.what(), sizeof(refusal.message) - 1);
        answer(refusal, -1);
        throw;
    }
    answer({}, memory);
}

File join(const ncclUniqueId& id, const Hello& own) {
    const auto [address, length] = address_of(id);
    const File socket = new_socket();
    while (connect(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0)
        std::this_thread::sleep_for(5ms);
    send(socket, &own, sizeof(own), MSG_NOSIGNAL);
    wait_readable(socket);  // rank 0 may wait for others
    return receive_memory(socket);
}

// ----------------------------------------------------------------------------------------------------
// collectives

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast };

// A collective, which all ranks must call with the same arguments. count is NCCL's: that of a rank's part
// if there are parts.
struct Call {
    Kind kind;
    ncclDataType_t type;
    size_t count;
    int root = 0;
    bool operator==(const Call&) const = default;

    size_t element_bytes() const {
        return type == ncclFloat32 ? sizeof(float) : type == ncclBfloat16 ? sizeof(bfloat16) : 1;
    }
    std::string describe() const;
};

std::string Call::describe() const {
    const char* const type_name = type == ncclFloat32 ? "fp32" : type == ncclBfloat16 ? "bf16" : "bytes";
    switch (kind) {
        case Kind::all_reduce: return fmt::format("ncclAllReduce of {} {}", count, type_name);
        case Kind::reduce_scatter: return fmt::format("ncclReduceScatter of {} {} a rank", count, type_name);
        case Kind::all_gather: return fmt::format("ncclAllGather of {} {} a rank", count, type_name);
        default: return fmt::format("ncclBroadcast of {} {} from rank {}", count, type_name, root);
    }
}

template <class T>
void add(std::byte* sum, const std::byte* values, size_t count) {
    T* const s = reinterpret_cast<T*>(sum);
    const T* const v = reinterpret_cast<const T*>(values);
    for (size_t i = 0; i < count; i++) {
        if constexpr (std::is_same_v<T, bfloat16>)
            s[i] = bfloat16(static_cast<float>(s[i]) + static_cast<float>(v[i]));
        else s[i] = static_cast<T>(s[i] + v[i]);
    }
}

// The ranks of a communicator, on top of their shared memory.
class Group {
public:
    Group(File memory, int rank, int size);
    ~Group() { munmap(shared_, bytes_of(size_)); }
    Group(const Group&) = delete;

    static size_t bytes_of(int size) { return static_cast<size_t>(size) * (sizeof(Seat) + area_bytes); }
    int rank() const { return rank_; }
    size_t size() const { return static_cast<size_t>(size_); }
    ncclResult_t state() const { return state_; }

    // Returns early without any effect once the communicator is aborted.
    void run(const Call& call, const void* from, void* to);
    void abort();
    // Waits until the other ranks leave too.
    void leave();

private:
    // A rank's place in the shared memory.
    struct alignas(64) Seat {
        std::atomic<uint64_t> rounds;  // that this rank has finished
        std::atomic<int> joined, left, aborted;
        Call call;
    };
    static_assert(std::atomic<uint64_t>::is_always_lock_free);
    static constexpr size_t area_bytes = size_t{1} << 20;  // through which a rank's values pass

    struct Aborted {};

    Seat& seat(int rank) const { return static_cast<Seat*>(shared_)[rank]; }
    std::byte* area(int rank) const {
        return static_cast<std::byte*>(shared_) + size() * sizeof(Seat) +
               static_cast<size_t>(rank) * area_bytes;
    }
    bool has_ended(int rank) const;
    template <class IsThere>
    void wait_for_all(const std::string& what, const IsThere& is_there);
    void finish_round(const std::string& what);
    void fail(const Error& error);
    void collect(const Call& call, const void* from, void* to);
    void check_alike(const Call& own);
    void check_memory(const Call& call, const void* from, void* to) const;
    void sum(const Call& call, std::byte* to, size_t count) const;
    template <class Put, class Take>
    void pass(const Call& call, const Put& put, const Take& take);

    File memory_;
    int rank_, size_;
    void* shared_;
    std::atomic<bool> aborted_ = false;
    std::atomic<ncclResult_t> state_ = ncclSuccess;
};

// A living rank holds a lock on its byte of the shared memory; the system releases it whenever and however
// the process ends.
Group::Group(File memory, int rank, int size) : memory_(std::move(memory)), rank_(rank), size_(size) {
    shared_ = mmap(nullptr, bytes_of(size), PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0);
    if (shared_ == MAP_FAILED) throw Error(ncclSystemError, fmt::format("mmap: {}", std::strerror(errno)));
    flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    if (fcntl(memory_, F_SETLK, &lock) != 0)
        throw Error(ncclSystemError, fmt::format("F_SETLK: {}", std::strerror(errno)));
    seat(rank).joined = 1;
    wait_for_all("ncclCommInitRank", [](const Seat& seat) { return seat.joined != 0; });
}

bool Group::has_ended(int rank) const {
    if (rank == rank_ || seat(rank).joined == 0) return false;
    flock lock{};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return fcntl(memory_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

// Reports the error to ncclCommGetAsyncError, and leaves the program some time to end or to abort.
void Group::fail(const Error& error) {
    set_last_error(error.what());
    state_ = error.result;
    const Clock::time_point until = Clock::now() + 10s;
    while (!aborted_ && Clock::now() < until) std::this_thread::sleep_for(1ms);
    if (!aborted_) throw Fault(fmt::format("NCCL: {}", error.what()));
}

template <class IsThere>
void Group::wait_for_all(const std::string& what, const IsThere& is_there) {
    Clock::time_point looked = Clock::now();
    int missing = 0;
    for (int polls = 0;; polls++) {
        while (missing < size_ && is_there(seat(missing))) missing++;
        if (missing == size_) return;
        if (aborted_) throw Aborted{};
        if (polls < 100) {
            std::this_thread::yield();
            continue;
        }
        std::this_thread::sleep_for(50us);
        const Clock::time_point now = Clock::now();
        if (now - looked < 10ms) continue;
        looked = now;
        // It may have arrived since, and ended then.
        const bool ended = has_ended(missing), aborted = seat(missing).aborted != 0;
        if (is_there(seat(missing))) continue;
        if (ended || aborted)
            throw Error(ncclRemoteError, fmt::format("rank {} has {} before {}", missing,
                                                     aborted ? "aborted" : "ended", what));
    }
}

void Group::finish_round(const std::string& what) {
    const uint64_t rounds = ++seat(rank_).rounds;
    wait_for_all(what, [rounds](const Seat& seat) { return seat.rounds >= rounds; });
}

void Group::check_alike(const Call& own) {
    seat(rank_).call = own;
    finish_round(own.describe());
    const Call& first = seat(0).call;
    for (int r = 1; r < size_; r++) {
        if (seat(r).call != first)
            throw Fault(fmt::format("NCCL: rank 0 calls {} while rank {} calls {}", first.describe(), r,
                                    seat(r).call.describe()));
    }
}

void Group::check_memory(const Call& call, const void* from, void* to) const {
    software_gpu::Memory& memory = software_gpu::device_memory();
    const size_t part = call.count * call.element_bytes(), whole = part * size();
    const size_t from_bytes = call.kind == Kind::reduce_scatter ? whole : part,
                 to_bytes = call.kind == Kind::all_gather ? whole : part;
    const bool reads = call.kind != Kind::broadcast || rank_ == call.root;
    const std::string name = call.describe();
    const auto lies_in_device = [&](bool does, const void* address) {
        if (!does)
            throw Fault(fmt::format("{}: {} is not memory of the device, but {}", name, address,
                                    memory.nearest(address)));
    };
    if (reads) lies_in_device(memory.check_read(from, from_bytes, name), from);
    lies_in_device(memory.note_write(to, to_bytes, name), to);
    // A collective is in place if a rank's part lies at its place in the whole.
    const auto *const input = static_cast<const std::byte*>(from), *const output =
                                                                       static_cast<const std::byte*>(to);
    const size_t own = static_cast<size_t>(rank_) * part;
    const bool in_place = call.kind == Kind::reduce_scatter ? output == input + own
                          : call.kind == Kind::all_gather   ? input == output + own
                                                            : input == output;
    if (reads && !in_place && input < output + to_bytes && output < input + from_bytes)
        throw Fault(fmt::format("{}: its input and output overlap, but not as in place", name));
}

// Adds up the values in the ranks' areas, in rank order.
void Group::sum(const Call& call, std::byte* to, size_t count) const {
    std::memcpy(to, area(0), count * call.element_bytes());
    for (int r = 1; r < size_; r++) {
        if (call.type == ncclFloat32) add<float>(to, area(r), count);
        else if (call.type == ncclBfloat16) add<bfloat16>(to, area(r), count);
        else add<uint8_t>(to, area(r), count);
    }
}

// Passes the values in pieces that fit in an area: put(first, count) fills this rank's area, and
// take(first, count) reads all of them.
template <class Put, class Take>
void Group::pass(const Call& call, const Put& put, const Take& take) {
    const std::string name = call.describe();
    const size_t most = area_bytes / call.element_bytes();
    for (size_t first = 0; first < call.count; first += most) {
        const size_t count = std::min(most, call.count - first);
        put(first, count);
        finish_round(name);
        take(first, count);
        finish_round(name);
    }
}

void Group::run(const Call& call, const void* from, void* to) {
    if (aborted_) return;
    check_memory(call, from, to);
    try {
        check_alike(call);
        collect(call, from, to);
    } catch (const Aborted&) {
    } catch (const Error& error) { fail(error); }
}

void Group::collect(const Call& call, const void* from, void* to) {
    const size_t bytes = call.element_bytes();
    const auto* const input = static_cast<const std::byte*>(from);
    auto* const output = static_cast<std::byte*>(to);
    const auto put = [&](size_t first, size_t count) {
        std::memcpy(area(rank_), input + first * bytes, count * bytes);
    };
    const auto put_root = [&](size_t first, size_t count) {
        if (rank_ == call.root) put(first, count);
    };
    const auto take_sum = [&](size_t first, size_t count) { sum(call, output + first * bytes, count); };
    const auto take_root = [&](size_t first, size_t count) {
        std::memcpy(output + first * bytes, area(call.root), count * bytes);
    };
    const auto take_all = [&](size_t first, size_t count) {
        for (size_t r = 0; r < size(); r++)
            std::memcpy(output + (r * call.count + first) * bytes, area(static_cast<int>(r)), count * bytes);
    };
    const auto reduce_part = [&](int part) {
        const auto put_part = [&](size_t first, size_t count) {
            put(static_cast<size_t>(part) * call.count + first, count);
        };
        const auto take_own = [&](size_t first, size_t count) {
            if (part == rank_) take_sum(first, count);
        };
        pass(call, put_part, take_own);
    };
    switch (call.kind) {
        case Kind::all_reduce: return pass(call, put, take_sum);
        case Kind::all_gather: return pass(call, put, take_all);
        case Kind::broadcast: return pass(call, put_root, take_root);
        case Kind::reduce_scatter:
            for (int part = 0; part < size_; part++) reduce_part(part);
    }
}

void Group::abort() {
    seat(rank_).aborted = 1;
    aborted_ = true;
}

void Group::leave() {
    seat(rank_).left = 1;
    try {
        wait_for_all("ncclCommFinalize", [](const Seat& seat) { return seat.left != 0; });
    } catch (const Aborted&) {}
}

}  // namespace

struct ncclComm {
    std::shared_ptr<Group> group;  // work that is queued in streams shares it
    std::set<cudaStream_t> streams = {};
    bool finalized = false;

    void call(const Call& call, ncclRedOp_t operation, const void* from, void* to, cudaStream_t stream);
    void finalize();
};

void ncclComm::call(const Call& call, ncclRedOp_t operation, const void* from, void* to,
                    cudaStream_t stream) {
    const bool known = call.type == ncclFloat32 || call.type == ncclBfloat16 || call.type == ncclUint8 ||
                       call.type == ncclInt8;
    if (!known || operation != ncclSum)
        throw Error(ncclInvalidArgument,
                    fmt::format("type {} with operation {} is not known here", static_cast<int>(call.type),
                                static_cast<int>(operation)));
    if (call.root < 0 || static_cast<size_t>(call.root) >= group->size())
        throw Error(ncclInvalidArgument, fmt::format("no rank is {}", call.root));
    if (finalized) throw Error(ncclInvalidUsage, "the communicator is finalized");
    if (call.count == 0) return;
    if (!from || !to)
        throw Error(ncclInvalidArgument, fmt::format("{}: an address is NULL", call.describe()));
    streams.insert(stream);
    const std::string places = software_gpu::traces() ? fmt::format(" from {} to {} in stream {}", from, to,
                                                                    static_cast<const void*>(stream))
                                                      : "";
    software_gpu::enqueue(
        stream, [group = group, call, from, to] { group->run(call, from, to); }, call.describe() + places,
        software_gpu::WaitsFor::other_processes);
}

// "flushes all issued communications"
void ncclComm::finalize() {
    if (std::exchange(finalized, true)) return;
    for (const cudaStream_t stream : streams) cudaStreamSynchronize(stream);
    group->leave();
}

extern "C" {
ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }

// If NCCL_COMM_ID is set, it determines the id, which is then the same in every process.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::string text(id_begin);
    if (const char* const address = std::getenv("NCCL_COMM_ID")) {
        text += address;
    } else {
        std::random_device random;
        for (int i = 0; i < 4; i++) text += fmt::format("{:08x}", random());
    }
    *id = {};
    std::strncpy(id->internal, text.c_str(), 100);  // as a socket's name allows
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
    return reported([&] {
        if (!comm || size < 1 || rank < 0 || rank >= size)
            throw Error(ncclInvalidArgument, fmt::format("rank {} of {}", rank, size));
        if (!text_of(id).starts_with(id_begin))
            throw Error(ncclInvalidArgument, "the id is not of ncclGetUniqueId");
        Hello own{.size = size, .rank = rank, .device = 0};
        cudaGetDevice(&own.device);
        File memory;
        if (rank == 0) {
            memory = File(memfd_create("software-gpu-nccl", MFD_CLOEXEC));
            if (memory < 0 || ftruncate(memory, static_cast<off_t>(Group::bytes_of(size))) != 0)
                throw Error(ncclSystemError, fmt::format("memfd_create: {}", std::strerror(errno)));
            welcome_others(id, own, memory);
        } else {
            memory = join(id, own);
        }
        *comm = new ncclComm{std::make_shared<Group>(std::move(memory), rank, size)};
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    return reported([&] {
        needed(comm);
        comm->finalize();
    });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return reported([&] {
        needed(comm);
        comm->finalize();
        delete comm;
    });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return reported([&] {
        needed(comm);
        comm->group->abort();
        delete comm;
    });
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    return reported([&] {
        needed(comm);
        *state = comm->group->state();
    });
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    return reported([&] {
        needed(comm);
        comm->call({Kind::all_reduce, type, count}, operation, from, to, stream);
    });
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
    return reported([&] {
        needed(comm);
        comm->call({Kind::reduce_scatter, type, count}, operation, from, to, stream);
    });
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return reported([&] {
        needed(comm);
        comm->call({Kind::all_gather, type, count}, ncclSum, from, to, stream);
    });
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return reported([&] {
        needed(comm);
        comm->call({Kind::broadcast, type, count, root}, ncclSum, from, to, stream);
    });
}

const char* ncclGetLastError(ncclComm_t) {
    thread_local std::string text;
    const std::lock_guard lock(last_error_mutex);
    return (text = last_error_text).c_str();
}
const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError: return "remote process exited or there was a network error";
        default: return "unknown result code";
    }
}
}
