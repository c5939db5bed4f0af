#include "trainer/run/nvidia_rates.h"

#include <cctype>
#include <set>
#include <sstream>
#include <string_view>

namespace {

// Rates in TFLOP/s at the boost clock, without sparsity (data sheets often print the double) and with
// fp32 accumulation (at which GeForce cards have half the rate of fp16 accumulation). 0 means that the
// GPU lacks the type (Turing has neither bf16 nor tf32) or that no source confirms the rate.
//
// Every row was confirmed by a source other than this table; the comment on each group names it. "Cores
// and clock" means that fp32 is two operations per core and clock and that the other rates are multiples
// of it; test_nvidia_rates.cpp computes these rows again. Where one name stands for several cards, the
// row has the first; later ones differ by up to 11 % (GTX 1650 GDDR6, RTX 2060 and RTX 3080 12 GB).
struct Rates {
    std::string_view name;  // as simplified() returns it
    double bf16, tf32, fp32;
};

constexpr Rates data_sheets[] = {
    // Data centre, Turing to Ada. The source is the table of PyTorch Lightning, which cites NVIDIA's data
    // sheets, for T4, A10, A100, L4 and L40; the copies of their data sheets that resellers print for A40
    // and L40S; the GPU pages of HMC Tech for A2 and A800. A30 is computed from cores and clock with the
    // multiples of A100, and public tables for MFU agree. The rates of the A10G are from such tables too;
    // they disagree on fp32.
    {"T4", 0, 0, 8.1},
    {"A2", 18, 9, 4.5},
    {"A10", 125, 62.5, 31.2},
    {"A10G", 70, 35, 0},
    {"A30", 165, 82, 10.3},
    {"A40", 149.7, 74.8, 37.4},
    {"A100", 312, 156, 19.5},
    {"A100 PCIE", 312, 156, 19.5},
    {"A800", 312, 156, 19.5},
    {"A800 PCIE", 312, 156, 19.5},
    {"L4", 121, 60, 30.3},
    {"L40", 181, 90.5, 90.5},
    {"L40S", 362, 183, 91.6},
    // Data centre, Hopper. The source is the table of PyTorch Lightning for H100 (of a fork for H200) and
    // copies of the data sheets for H800 and H20. GH200 has the GPU of the H100's SXM module: a public
    // table has 989.5 for bf16, and GPUInspector.jl computes 66.9 for fp32 on the GPU itself. The names
    // of SXM modules carry no further word.
    {"H20", 148, 74, 44},
    {"H100", 989.4, 494.7, 66.9},
    {"H100 PCIE", 756, 378, 51.2},
    {"H100 NVL", 835.5, 417.5, 60},
    {"H800", 989.4, 494.7, 66.9},
    {"H800 PCIE", 756, 378, 51.2},
    {"H200", 989.4, 494.7, 66.9},
    {"H200 NVL", 835.5, 417.5, 60},
    {"GH200", 989.4, 494.7, 66.9},
    // Data centre, Blackwell. The source is copies of the data sheets of HGX B200 and B300 (an eighth of
    // their sums) and of GB200 NVL72, the GPU pages of HMC Tech for B100, and an article of Verda on
    // GB300.
    {"B100", 1750, 875, 60},
    {"B200", 2250, 1125, 75},
    {"B300", 2250, 1125, 75},
    {"GB200", 2500, 1250, 80},
    {"GB300", 2500, 1250, 80},
    // Workstations, Turing. The source is copies of the data sheets (Quadro RTX 6000 and 8000), the table
    // of PyTorch Lightning (Quadro RTX 5000, TITAN RTX), and cores and clock (Quadro RTX 4000).
    {"QUADRO RTX 4000", 0, 0, 7.1},
    {"QUADRO RTX 5000", 0, 0, 11.2},
    {"QUADRO RTX 6000", 0, 0, 16.3},
    {"QUADRO RTX 8000", 0, 0, 16.3},
    {"TITAN RTX", 0, 0, 16.3},
    // Workstations, Ampere to Blackwell: cores and clock, which llm.c's mfu.h has for most of them and
    // public databases of GPUs for A5500, 4000 SFF, 4500 Ada and Blackwell. The multiples, 4 for bf16 and
    // 2 for tf32, are those of the A6000 in the white paper "NVIDIA Ampere GA102 GPU Architecture" and of
    // Ada and Blackwell cards on the GPU pages of HMC Tech. "Tensor performance" in NVIDIA's data sheets
    // is with sparsity, of fp16 on Ampere and of fp8 on Ada.
    {"RTX A2000", 31.9, 16, 8},
    {"RTX A2000 12GB", 31.9, 16, 8},
    {"RTX A4000", 76.7, 38.3, 19.2},
    {"RTX A4500", 94.6, 47.3, 23.7},
    {"RTX A5000", 111.1, 55.6, 27.8},
    {"RTX A5500", 136.4, 68.2, 34.1},
    {"RTX A6000", 154.8, 77.4, 38.7},
    {"RTX 2000 ADA GENERATION", 48, 24, 12},
    {"RTX 4000 SFF ADA GENERATION", 76.7, 38.3, 19.2},
    {"RTX 4000 ADA GENERATION", 106.9, 53.5, 26.7},
    {"RTX 4500 ADA GENERATION", 158.5, 79.3, 39.6},
    {"RTX 5000 ADA GENERATION", 261.1, 130.6, 65.3},
    {"RTX 6000 ADA GENERATION", 364.2, 182.1, 91.1},
    {"RTX PRO 6000 BLACKWELL WORKSTATION EDITION", 503.8, 251.9, 126},
    {"RTX PRO 6000 BLACKWELL MAX Q WORKSTATION EDITION", 440, 220, 110},
    // GeForce, Turing: cores and clock of the reference cards, from reviews by bit-tech, Guru3D and
    // TechPowerUp, the table of PyTorch Lightning (RTX 2070 SUPER and 2080 SUPER) and the GPU pages of
    // HMC Tech (GTX 1650 SUPER).
    {"GTX 1650", 0, 0, 3},
    {"GTX 1650 SUPER", 0, 0, 4.4},
    {"GTX 1660", 0, 0, 5},
    {"GTX 1660 SUPER", 0, 0, 5},
    {"GTX 1660 TI", 0, 0, 5.4},
    {"RTX 2060", 0, 0, 6.5},
    {"RTX 2060 SUPER", 0, 0, 7.2},
    {"RTX 2070", 0, 0, 7.5},
    {"RTX 2070 SUPER", 0, 0, 9.1},
    {"RTX 2080", 0, 0, 10.1},
    {"RTX 2080 SUPER", 0, 0, 11.2},
    {"RTX 2080 TI", 0, 0, 13.4},
    // GeForce, Ampere and Ada: cores and clock from llm.c's mfu.h, of RTX 3050 and 4090 D from public
    // databases of GPUs. The multiples, 2 for bf16 and 1 for tf32, are those of RTX 3090 Ti and 4090 in
    // mfu.h, which cites the white papers.
    {"RTX 3050", 18.2, 9.1, 9.1},
    {"RTX 3060", 25.5, 12.7, 12.7},
    {"RTX 3060 TI", 32.4, 16.2, 16.2},
    {"RTX 3070", 40.6, 20.3, 20.3},
    {"RTX 3070 TI", 43.5, 21.7, 21.7},
    {"RTX 3080", 59.5, 29.8, 29.8},
    {"RTX 3080 TI", 68.2, 34.1, 34.1},
    {"RTX 3090", 71.2, 35.6, 35.6},
    {"RTX 3090 TI", 80, 40, 40},
    {"RTX 4060", 30.2, 15.1, 15.1},
    {"RTX 4060 TI", 44.1, 22.1, 22.1},
    {"RTX 4070", 58.3, 29.1, 29.1},
    {"RTX 4070 SUPER", 71, 35.5, 35.5},
    {"RTX 4070 TI", 80.2, 40.1, 40.1},
    {"RTX 4070 TI SUPER", 88.2, 44.1, 44.1},
    {"RTX 4080", 97.5, 48.7, 48.7},
    {"RTX 4080 SUPER", 104.4, 52.2, 52.2},
    {"RTX 4090", 165.2, 82.6, 82.6},
    {"RTX 4090 D", 147.1, 73.5, 73.5},
    // GeForce, Blackwell: cores and clock from reviews and databases of GPUs. The multiples are those of
    // Ada: a public table quotes 209.5 for bf16 on the RTX 5090 from the white paper "NVIDIA RTX
    // Blackwell GPU Architecture".
    {"RTX 5050", 26.3, 13.2, 13.2},
    {"RTX 5060", 38.4, 19.2, 19.2},
    {"RTX 5060 TI", 47.4, 23.7, 23.7},
    {"RTX 5070", 61.7, 30.9, 30.9},
    {"RTX 5070 TI", 87.9, 43.9, 43.9},
    {"RTX 5080", 112.6, 56.3, 56.3},
    {"RTX 5090", 209.5, 104.8, 104.8},
};

// Words without influence on the rate: makers, sockets of modules ("SXM4"), cooling, and memory in the
// sizes that one chip is sold with. Any other size may be another chip: a GeForce RTX 3050 with 6 GB has
// fewer cores, an A100 with 64 GB has more.
bool is_skipped(const std::string& word) {
    static const std::set<std::string> words = {"NVIDIA", "TESLA", "GEFORCE", "AC",    "LC",
                                                "40GB",   "80GB",  "120GB",   "480GB", "144G"};
    return words.contains(word) || word.starts_with("HBM") || word.starts_with("SXM");
}

// "NVIDIA A100-PCIE-40GB" becomes "A100 PCIE".
std::string simplified(std::string name) {
    for (char& c : name) c = c == '-' ? ' ' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    std::istringstream in(name);
    std::string result;
    for (std::string word; in >> word;) {
        if (!is_skipped(word)) result += (result.empty() ? "" : " ") + word;
    }
    return result;
}

}  // namespace

// All remaining words must match: "RTX 4090 Laptop GPU" is another chip than "RTX 4090", and a slice of a
// GPU (MIG) is slower than the whole.
std::optional<double> nvidia_matmul_rate(const std::string& device, DType dtype) {
    const std::string name = simplified(device);
    for (const Rates& rates : data_sheets) {
        if (rates.name != name) continue;
        const double tera = dtype == DType::bf16   ? rates.bf16
                            : dtype == DType::tf32 ? rates.tf32
                                                   : rates.fp32;
        if (tera > 0) return tera * 1e12;
    }
    return std::nullopt;
}
