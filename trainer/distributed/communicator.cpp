#include "trainer/distributed/communicator.h"

#include <algorithm>
#include <cstring>

namespace {

// Gathers `bytes` bytes from every process. This process's bytes are `mine`, padded with zeros.
std::vector<std::byte> gather(Communicator& communicator, const void* mine, size_t mine_bytes, size_t bytes) {
    std::vector<std::byte> all(static_cast<size_t>(communicator.size()) * bytes);
    if (mine_bytes > 0)
        std::memcpy(all.data() + static_cast<size_t>(communicator.rank()) * bytes, mine, mine_bytes);
    const simt::DeviceBuffer<std::byte> device(all.size());
    simt::copy_to_device(device.data(), all.data(), all.size(), nullptr);
    communicator.wait(
        communicator.begin({Collective::all_gather, device.data(), all.size(), Collective::byte}, nullptr),
        nullptr);
    simt::copy_to_host(all.data(), device.data(), all.size(), nullptr);
    simt::stream_synchronize(nullptr);
    return all;
}

}  // namespace

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine) {
    if (communicator.size() == 1) return {mine};
    const size_t size = static_cast<size_t>(communicator.size());
    const uint64_t own_length = mine.size();
    const std::vector<std::byte> length_bytes =
        gather(communicator, &own_length, sizeof(own_length), sizeof(own_length));
    std::vector<uint64_t> lengths(size);
    std::memcpy(lengths.data(), length_bytes.data(), length_bytes.size());
    const size_t longest = *std::max_element(lengths.begin(), lengths.end());
    std::vector<std::string> texts(size);
    if (longest == 0) return texts;
    const std::vector<std::byte> all = gather(communicator, mine.data(), mine.size(), longest);
    for (size_t r = 0; r < size; r++)
        texts[r].assign(reinterpret_cast<const char*>(all.data()) + r * longest, lengths[r]);
    return texts;
}

std::vector<double> sum_over_processes(Communicator& communicator, const std::vector<double>& mine) {
    if (communicator.size() == 1) return mine;
    const size_t bytes = mine.size() * sizeof(double);
    const std::vector<std::byte> all = gather(communicator, mine.data(), bytes, bytes);
    std::vector<double> sums(mine.size(), 0.0), theirs(mine.size());
    for (size_t r = 0; r < static_cast<size_t>(communicator.size()); r++) {
        std::memcpy(theirs.data(), all.data() + r * bytes, bytes);
        for (size_t i = 0; i < sums.size(); i++) sums[i] += theirs[i];
    }
    return sums;
}
