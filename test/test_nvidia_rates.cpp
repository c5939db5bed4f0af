// The table of peak rates behind MFU, looked up by the names that CUDA reports
#include <gtest/gtest.h>

#include <span>

#include "trainer/run/peaks.h"

namespace {

double tera(const std::string& device, DType dtype) {
    return nvidia_matmul_rate(device, dtype).value_or(0) * 1e-12;
}

TEST(NvidiaRates, VariantsOfADataCentreGpuDiffer) {
    EXPECT_DOUBLE_EQ(tera("NVIDIA H100 80GB HBM3", DType::bf16), 989.4);  // SXM
    EXPECT_DOUBLE_EQ(tera("NVIDIA H100 PCIe", DType::bf16), 756);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H100 NVL", DType::bf16), 835.5);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200", DType::bf16), 989.4);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200", DType::tf32), 494.7);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200", DType::fp32), 66.9);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200 NVL", DType::bf16), 835.5);
    for (const char* name : {"NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "NVIDIA GH200 144G HBM3e"})
        EXPECT_DOUBLE_EQ(tera(name, DType::bf16), 989.4) << name;
    for (const char* name : {"A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB",
                             "NVIDIA A100 80GB PCIe", "NVIDIA A800-SXM4-80GB"})
        EXPECT_DOUBLE_EQ(tera(name, DType::bf16), 312) << name;
    EXPECT_DOUBLE_EQ(tera("NVIDIA A10", DType::bf16), 125);
    EXPECT_DOUBLE_EQ(tera("NVIDIA A10G", DType::bf16), 70);
    EXPECT_DOUBLE_EQ(tera("NVIDIA A10G", DType::tf32), 35);
    EXPECT_FALSE(nvidia_matmul_rate("NVIDIA A10G", DType::fp32));  // sources disagree
    EXPECT_DOUBLE_EQ(tera("NVIDIA A40", DType::tf32), 74.8);
    EXPECT_DOUBLE_EQ(tera("NVIDIA L4", DType::bf16), 121);
    EXPECT_DOUBLE_EQ(tera("NVIDIA L40S", DType::bf16), 362);
    EXPECT_DOUBLE_EQ(tera("NVIDIA B200", DType::bf16), 2250);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GB200", DType::bf16), 2500);
    EXPECT_DOUBLE_EQ(tera("NVIDIA B300 SXM6 AC", DType::bf16), 2250);
}

TEST(NvidiaRates, MakersAndFamiliesMayStandBeforeACardsName) {
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX A6000", DType::bf16), 154.8);
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX 6000 Ada Generation", DType::bf16), 364.2);
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", DType::fp32), 110);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 4070 Ti SUPER", DType::bf16), 88.2);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 5090", DType::tf32), 104.8);
}

TEST(NvidiaRates, TuringHasFp32Only) {
    EXPECT_DOUBLE_EQ(tera("Tesla T4", DType::fp32), 8.1);
    EXPECT_FALSE(nvidia_matmul_rate("Tesla T4", DType::bf16));
    EXPECT_FALSE(nvidia_matmul_rate("NVIDIA GeForce RTX 2080", DType::tf32));
}

struct Card {
    const char* name;
    int cores, mhz;  // mhz is the boost clock
};
const Card turing[] = {
    {"Tesla T4", 2560, 1590},        {"Quadro RTX 4000", 2304, 1545}, {"Quadro RTX 5000", 3072, 1815},
    {"Quadro RTX 6000", 4608, 1770}, {"Quadro RTX 8000", 4608, 1770}, {"TITAN RTX", 4608, 1770},
    {"GTX 1650", 896, 1665},         {"GTX 1650 SUPER", 1280, 1725},  {"GTX 1660", 1408, 1785},
    {"GTX 1660 SUPER", 1408, 1785},  {"GTX 1660 Ti", 1536, 1770},     {"RTX 2060", 1920, 1680},
    {"RTX 2060 SUPER", 2176, 1650},  {"RTX 2070", 2304, 1620},        {"RTX 2070 SUPER", 2560, 1770},
    {"RTX 2080", 2944, 1710},        {"RTX 2080 SUPER", 3072, 1815},  {"RTX 2080 Ti", 4352, 1545},
};
// The L40 has the multiples of GeForce cards.
const Card geforce[] = {
    {"RTX 3050", 2560, 1777},       {"RTX 3060", 3584, 1777},        {"RTX 3060 Ti", 4864, 1665},
    {"RTX 3070", 5888, 1725},       {"RTX 3070 Ti", 6144, 1770},     {"RTX 3080", 8704, 1710},
    {"RTX 3080 Ti", 10240, 1665},   {"RTX 3090", 10496, 1695},       {"RTX 3090 Ti", 10752, 1860},
    {"RTX 4060", 3072, 2460},       {"RTX 4060 Ti", 4352, 2535},     {"RTX 4070", 5888, 2475},
    {"RTX 4070 SUPER", 7168, 2475}, {"RTX 4070 Ti", 7680, 2610},     {"RTX 4070 Ti SUPER", 8448, 2610},
    {"RTX 4080", 9728, 2505},       {"RTX 4080 SUPER", 10240, 2550}, {"RTX 4090", 16384, 2520},
    {"RTX 4090 D", 14592, 2520},    {"RTX 5050", 2560, 2572},        {"RTX 5060", 3840, 2497},
    {"RTX 5060 Ti", 4608, 2572},    {"RTX 5070", 6144, 2512},        {"RTX 5070 Ti", 8960, 2452},
    {"RTX 5080", 10752, 2617},      {"RTX 5090", 21760, 2407},       {"NVIDIA L40", 18176, 2490},
};
// Data centre cards with the same chips are among them.
const Card workstations[] = {
    {"NVIDIA A2", 1280, 1770},
    {"NVIDIA A10", 9216, 1695},
    {"NVIDIA A40", 10752, 1740},
    {"NVIDIA L4", 7424, 2040},
    {"RTX A2000", 3328, 1200},
    {"RTX A4000", 6144, 1560},
    {"RTX A4500", 7168, 1650},
    {"RTX A5000", 8192, 1695},
    {"RTX A5500", 10240, 1665},
    {"RTX A6000", 10752, 1800},
    {"RTX 2000 Ada Generation", 2816, 2130},
    {"RTX 4000 SFF Ada Generation", 6144, 1560},
    {"RTX 4000 Ada Generation", 6144, 2175},
    {"RTX 4500 Ada Generation", 7680, 2580},
    {"RTX 5000 Ada Generation", 12800, 2550},
    {"RTX 6000 Ada Generation", 18176, 2505},
    {"RTX PRO 6000 Blackwell Workstation Edition", 24064, 2617},
    {"RTX PRO 6000 Blackwell Max-Q Workstation Edition", 24064, 2288},
};
const Card ga100[] = {
    {"NVIDIA A30", 3584, 1440}, {"A100-SXM4-40GB", 6912, 1410}, {"NVIDIA A100 80GB PCIe", 6912, 1410}};

// Every core multiplies and adds once per clock, and tensor cores have a multiple of that rate, which the
// white papers of the architectures state. Cards whose boost clock NVIDIA does not print (Hopper and
// Blackwell in the data centre) are left out. So is the L40S: its data sheet has 362 for dense bf16 but
// 733 with sparsity, which is twice 366.
TEST(NvidiaRates, CoresAndClocksExplainTheTable) {
    const auto expect = [](std::span<const Card> cards, double bf16, double tf32) {
        for (const auto& [name, cores, mhz] : cards) {
            const double fp32 = 2e-6 * cores * mhz;
            // Data sheets round fp32 to 0.1 (to 1 above 100) and tensor core rates of small cards to 1.
            EXPECT_NEAR(tera(name, DType::fp32), fp32, fp32 < 100 ? 0.051 : 0.5) << name;
            EXPECT_NEAR(tera(name, DType::bf16), bf16 * fp32, 0.012 * bf16 * fp32) << name;
            EXPECT_NEAR(tera(name, DType::tf32), tf32 * fp32, 0.012 * tf32 * fp32) << name;
        }
    };
    expect(turing, 0, 0);
    expect(geforce, 2, 1);
    expect(workstations, 4, 2);
    expect(ga100, 16, 8);
}

// No rate is guessed for a name that is not in the table or has further words.
TEST(NvidiaRates, UnknownNamesHaveNone) {
    for (const char* name : {"", "NVIDIA", "Intel(R) Xeon(R) Processor, 2 threads", "Tesla V100-SXM2-16GB",
                             "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3070 Lite",
                             "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 XYZ", "RTX", "NVIDIA RTX 6000",
                             "NVIDIA GeForce RTX 3050 6GB", "NVIDIA A100-SXM-64GB", "NVIDIA GB10",
                             "NVIDIA GeForce GTX 1650 with Max-Q Design", "NVIDIA A16", "NVIDIA L20",
                             "NVIDIA RTX PRO 6000 Blackwell Server Edition"}) {
        for (const DType dtype : {DType::fp32, DType::tf32, DType::bf16})
            EXPECT_FALSE(nvidia_matmul_rate(name, dtype)) << name;
    }
}

}  // namespace
