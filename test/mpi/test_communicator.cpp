// The operations between processes, against sums in double precision that every process computes for itself.
#include <random>

#include "../temporary_folder.h"
#include "processes.h"
#include "trainer/run/replicas.h"

namespace {

// The input of process `rank`, which every process can compute for every other.
template <class T>
std::vector<T> contribution(size_t count, int rank, unsigned seed) {
    std::mt19937 generator(seed * 1000 + static_cast<unsigned>(rank));
    std::normal_distribution<float> normal;
    std::vector<T> values(count);
    for (T& value : values) value = static_cast<T>(normal(generator));
    return values;
}

template <class T>
constexpr Collective::Element element = sizeof(T) == 4 ? Collective::fp32 : Collective::bf16;

template <class T>
std::vector<T> run(Collective::Kind kind, const std::vector<T>& values, int root = 0) {
    simt::DeviceBuffer<T> device(values.size());
    simt::copy_to_device(device.data(), values.data(), device.bytes(), nullptr);
    communicator().wait(communicator().begin({kind, device.data(), values.size(), element<T>, root}, nullptr),
                        nullptr);
    std::vector<T> result(values.size());
    simt::copy_to_host(result.data(), device.data(), device.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    return result;
}

template <class T>
class Collectives : public testing::Test {};
using Types = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(Collectives, Types);

// In fp32 the sum of N terms is off by at most N half units in the last place of the largest partial sum. On
// the CPU bf16 rounds that once more; NCCL adds two bf16 values at a time and rounds each partial sum.
template <class T>
void expect_sums(const std::vector<T>& sums, size_t begin, size_t end, unsigned seed) {
    std::vector<std::vector<T>> parts;
    for (int r = 0; r < communicator().size(); r++) parts.push_back(contribution<T>(sums.size(), r, seed));
    size_t wrong = 0;
    for (size_t i = begin; i < end; i++) {
        double sum = 0, magnitude = 0;
        for (const std::vector<T>& part : parts) {
            sum += static_cast<double>(static_cast<float>(part[i]));
            magnitude += std::abs(static_cast<double>(static_cast<float>(part[i])));
        }
        const double rounded = simt::is_gpu() ? magnitude * (communicator().size() - 1) : std::abs(sum);
        const double bound =
            magnitude * communicator().size() * 0x1p-24 + (sizeof(T) == 2 ? rounded * 0x1p-8 : 0);
        wrong += !(std::abs(static_cast<double>(static_cast<float>(sums[i])) - sum) <= bound);
    }
    EXPECT_EQ(wrong, 0u) << "of " << end - begin << ", seed " << seed;
}

// The counts cover every code path: a few numbers, several pieces, a shorter last piece.
std::vector<size_t> counts() {
    const size_t N = static_cast<size_t>(communicator().size());
    return {1, 2, N, 3 * N + 1, 1000 * N, 50000 * N, 300000 * N + 8 * N};
}

TYPED_TEST(Collectives, AllReduceAddsUpWithTheSameBitsEverywhere) {
    unsigned seed = 0;
    for (const size_t count : counts()) {
        const std::vector<TypeParam> sums =
            run(Collective::all_reduce, contribution<TypeParam>(count, communicator().rank(), ++seed));
        expect_sums(sums, 0, count, seed);
        const std::string own(reinterpret_cast<const char*>(sums.data()), count * sizeof(TypeParam));
        for (const std::string& other : gather_texts(communicator(), own)) EXPECT_TRUE(other == own) << count;
    }
}

TYPED_TEST(Collectives, ReduceScatterLeavesEachItsPartOfTheSameSums) {
    unsigned seed = 100;
    const size_t N = static_cast<size_t>(communicator().size()),
                 rank = static_cast<size_t>(communicator().rank());
    for (const size_t part : {1u, 7u, 5000u, 300001u}) {
        const size_t count = part * N;
        const std::vector<TypeParam> mine = contribution<TypeParam>(count, communicator().rank(), ++seed);
        const std::vector<TypeParam> sums = run(Collective::reduce_scatter, mine),
                                     all = run(Collective::all_reduce, mine);
        expect_sums(sums, rank * part, (rank + 1) * part, seed);
        EXPECT_EQ(std::memcmp(sums.data() + rank * part, all.data() + rank * part, part * sizeof(TypeParam)),
                  0)
            << part;
    }
}

TYPED_TEST(Collectives, AllGatherCopiesEveryPart) {
    const size_t N = static_cast<size_t>(communicator().size()),
                 rank = static_cast<size_t>(communicator().rank());
    for (const size_t part : {1u, 13u, 70000u, 1000003u}) {
        std::vector<TypeParam> expected, mine(part * N, static_cast<TypeParam>(std::nanf("")));
        for (int r = 0; r < communicator().size(); r++) {
            const std::vector<TypeParam> theirs = contribution<TypeParam>(part, r, 200);
            expected.insert(expected.end(), theirs.begin(), theirs.end());
        }
        std::copy_n(expected.begin() + static_cast<ptrdiff_t>(rank * part), part,
                    mine.begin() + static_cast<ptrdiff_t>(rank * part));
        EXPECT_EQ(std::memcmp(run(Collective::all_gather, mine).data(), expected.data(),
                              expected.size() * sizeof(TypeParam)),
                  0)
            << part;
    }
}

TYPED_TEST(Collectives, BroadcastCopiesTheRoots) {
    for (int root = 0; root < communicator().size(); root++) {
        const std::vector<TypeParam> result =
            run(Collective::broadcast, contribution<TypeParam>(30001, communicator().rank(), 300), root);
        EXPECT_EQ(std::memcmp(result.data(), contribution<TypeParam>(30001, root, 300).data(),
                              result.size() * sizeof(TypeParam)),
                  0)
            << root;
    }
}

// Operations run in the order in which they were begun, concurrently with the caller.
TEST(Communicator, ManyOperationsMayBeOnTheirWay) {
    const size_t N = static_cast<size_t>(communicator().size()), count = 20000 * N, operations = 40;
    simt::DeviceBuffer<float> device(count * operations);
    std::vector<float> values(count * operations, 1.0f);
    simt::copy_to_device(device.data(), values.data(), device.bytes(), nullptr);
    Communicator::Ticket last = 0;
    for (size_t k = 0; k < operations; k++) {
        for (size_t again = 0; again <= k % 3; again++)
            last = communicator().begin(
                {Collective::all_reduce, device.data() + k * count, count, Collective::fp32}, nullptr);
    }
    communicator().wait(last, nullptr);
    simt::copy_to_host(values.data(), device.data(), device.bytes(), nullptr);
    simt::stream_synchronize(nullptr);
    size_t wrong = 0;
    for (size_t i = 0; i < values.size(); i++)
        wrong += values[i] != std::pow(static_cast<float>(N), static_cast<float>(i / count % 3 + 1));
    EXPECT_EQ(wrong, 0u);
}

TEST(Communicator, TextsOfAnyLengthAreExchanged) {
    const auto text_of = [](int rank) {
        return std::string(static_cast<size_t>(rank) * 1000, static_cast<char>('a' + rank));
    };
    const std::vector<std::string> texts = gather_texts(communicator(), text_of(communicator().rank()));
    for (int r = 0; r < communicator().size(); r++) EXPECT_EQ(texts[static_cast<size_t>(r)], text_of(r));
    for (const std::string& text : gather_texts(communicator(), "")) EXPECT_EQ(text, "");
}

TEST(Communicator, NumbersAreAddedUpInDoublePrecision) {
    const std::vector<double> sums = sum_over_processes(
        communicator(), {1.0, 0x1p-40 * communicator().rank(), communicator().rank() == 0 ? 1.0 : 0x1p-50});
    const double N = communicator().size();
    EXPECT_EQ(sums, (std::vector<double>{N, 0x1p-40 * N * (N - 1) / 2, 1.0 + 0x1p-50 * (N - 1)}));
}

// Every process gets the same answer, whichever of them differs: none may continue alone.
TEST(Replicas, OneProcessWithAnotherChecksumIsNamed) {
    const uint64_t checksum = 0x123456789abcdef0;
    check_replicas(communicator(), checksum, 3);  // all agree
    for (int rank = 1; rank < communicator().size(); rank++) {
        const uint64_t own = checksum ^ (communicator().rank() == rank ? 1 : 0);
        EXPECT_EQ(message_of<Error>([&] { check_replicas(communicator(), own, 4); }),
                  fmt::format("step 4: the parameters of rank {} differ from those of rank 0", rank));
    }
}

TEST(Replicas, OneProcessThatDoesSomethingElseIsNamed) {
    const nlohmann::json description = {
        {"data", {{"tokens", 1000}, {"checksum", "a1"}}}, {"version", "0.1.0"}, {"options", {{"lr", 1e-3}}}};
    check_same_start(communicator(), description);
    const struct {
        nlohmann::json::json_pointer place;
        nlohmann::json value;
        std::string expected;
    } cases[] = {{"/data/checksum"_json_pointer, "a2", "data/checksum is \"a2\" instead of \"a1\""},
                 {"/version"_json_pointer, "0.2.0", "version is \"0.2.0\" instead of \"0.1.0\""},
                 {"/options/lr"_json_pointer, 2e-3, "options/lr is 0.002 instead of 0.001"}};
    const int rank = communicator().size() - 1;
    if (rank == 0) return;  // there is no other process
    for (const auto& [place, value, expected] : cases) {
        nlohmann::json own = description;
        if (communicator().rank() == rank) own[place] = value;
        EXPECT_EQ(message_of<UsageError>([&] { check_same_start(communicator(), own); }),
                  fmt::format("rank {} was started differently from rank 0: {}; expected the same program, "
                              "options and data on all ranks",
                              rank, expected));
    }
}

}  // namespace
