// tensor_shards.cpp: the parts of tensors and stretches whose optimizer state a process keeps under ZeRO-1
#include <algorithm>

#include "trainer/model/tensor_table.h"

std::vector<Stretch> TensorTable::shard_of(const std::vector<Stretch>& stretches, int rank) const {
    const size_t world_size = static_cast<size_t>(world_size_), r = static_cast<size_t>(rank);
    std::vector<Stretch> parts;
    size_t first = 0;  // the first bucket that reaches into the stretch
    for (const Stretch& whole : stretches) {
        const size_t end_of_whole = whole.offset + whole.elements;
        while (first < buckets_.size() && buckets_[first].offset + buckets_[first].elements <= whole.offset)
            first++;
        for (size_t j = first; j < buckets_.size() && buckets_[j].offset < end_of_whole; j++) {
            const Bucket& bucket = buckets_[j];
            const size_t part = bucket.elements / world_size, part_begin = bucket.offset + r * part;
            const size_t begin = std::max(whole.offset, part_begin),
                         end = std::min(end_of_whole, part_begin + part);
            if (begin >= end) continue;
            Stretch& own = parts.emplace_back(whole);
            own.offset = begin, own.elements = end - begin;
            own.state_offset = bucket.offset / world_size + begin - part_begin;
        }
    }
    return parts;
}

std::vector<Stretch> TensorTable::shard_of_tensors(int rank) const {
    std::vector<Stretch> whole;
    for (size_t i = 0; i < tensors_.size(); i++) {
        const Tensor& t = tensors_[i];
        whole.push_back({t.offset, t.unpadded_elements, t.offset, i, t.weight_decay, t.from_matmul});
    }
    return shard_of(whole, rank);
}

std::vector<Stretch> TensorTable::shard_of_stretches(int rank) const { return shard_of(stretches_, rank); }
