// The table behind MFU, asked by the names that drivers give GPUs.
#include <gtest/gtest.h>

#include "nvidia_rates.h"

namespace {

double tera(const std::string& device, DType dtype) { return nvidia_matmul_rate(device, dtype).value_or(0) * 1e-12; }

TEST(NvidiaRates, TheVariantsOfADataCentreGpuAreToldApart) {
    EXPECT_DOUBLE_EQ(tera("NVIDIA H100 80GB HBM3", DType::bf16), 989.4);  // SXM
    EXPECT_DOUBLE_EQ(tera("NVIDIA H100 PCIe", DType::bf16), 756);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H100 NVL", DType::bf16), 835.5);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200", DType::bf16), 989.4);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200", DType::tf32), 494.7);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200", DType::fp32), 66.9);
    EXPECT_DOUBLE_EQ(tera("NVIDIA H200 NVL", DType::bf16), 835.5);
    for (const char* name : {"NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "NVIDIA GH200 144G HBM3e"})
        EXPECT_DOUBLE_EQ(tera(name, DType::bf16), 989.4) << name;
    for (const char* name : {"A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A800-SXM4-80GB"})
        EXPECT_DOUBLE_EQ(tera(name, DType::bf16), 312) << name;
    EXPECT_DOUBLE_EQ(tera("NVIDIA A10", DType::bf16), 125);
    EXPECT_DOUBLE_EQ(tera("NVIDIA A10G", DType::bf16), 70);
    EXPECT_DOUBLE_EQ(tera("NVIDIA A10G", DType::fp32), 31.5);
    EXPECT_DOUBLE_EQ(tera("NVIDIA A40", DType::tf32), 74.8);
    EXPECT_DOUBLE_EQ(tera("NVIDIA L4", DType::bf16), 121);
    EXPECT_DOUBLE_EQ(tera("NVIDIA L40S", DType::bf16), 362);
    EXPECT_DOUBLE_EQ(tera("NVIDIA B200", DType::bf16), 2250);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GB200", DType::bf16), 2500);
    EXPECT_DOUBLE_EQ(tera("NVIDIA B300 SXM6 AC", DType::bf16), 2250);
}

TEST(NvidiaRates, WorkstationAndGeForceCards) {
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX A2000 12GB", DType::bf16), 31.9);
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX A6000", DType::bf16), 154.8);
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX 6000 Ada Generation", DType::bf16), 364.2);
    EXPECT_DOUBLE_EQ(tera("Quadro RTX 6000", DType::fp32), 16.3);
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", DType::bf16), 503.8);
    EXPECT_DOUBLE_EQ(tera("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", DType::fp32), 110);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 2080 Ti", DType::fp32), 13.4);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 3060", DType::bf16), 25.5);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 4070", DType::bf16), 58.3);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 4070 Ti", DType::bf16), 80.2);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 4070 Ti SUPER", DType::bf16), 88.2);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 4090", DType::tf32), 82.6);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce RTX 5090", DType::bf16), 209.5);
}

TEST(NvidiaRates, TuringHasFp32Only) {
    EXPECT_DOUBLE_EQ(tera("Tesla T4", DType::fp32), 8.1);
    EXPECT_DOUBLE_EQ(tera("NVIDIA GeForce GTX 1660 SUPER", DType::fp32), 5);
    EXPECT_FALSE(nvidia_matmul_rate("Tesla T4", DType::bf16));
    EXPECT_FALSE(nvidia_matmul_rate("NVIDIA GeForce RTX 2080", DType::tf32));
}

// A name that is not in the table, or says more than the table knows, is not guessed at.
TEST(NvidiaRates, UnknownNamesHaveNone) {
    for (const char* name : {"", "NVIDIA", "Intel(R) Xeon(R) Processor, 2 threads", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090 Laptop GPU",
                             "NVIDIA GeForce RTX 3070 Lite", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 XYZ", "RTX", "NVIDIA RTX 6000",
                             "NVIDIA GeForce RTX 3050 6GB", "NVIDIA A100-SXM-64GB", "NVIDIA GB10", "NVIDIA GeForce GTX 1650 with Max-Q Design"}) {
        for (const DType dtype : {DType::fp32, DType::tf32, DType::bf16}) EXPECT_FALSE(nvidia_matmul_rate(name, dtype)) << name;
    }
}

}  // namespace
