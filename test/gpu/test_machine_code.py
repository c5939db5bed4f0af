"""Reads the machine code of the GPU build's kernels: test_machine_code.py build/cuda/cmake/gpu/libflatgpt_gpu.a
[--occupancy | --registers FILE]

Three things are checked: kernels bound by memory move 16 bytes per instruction, none keeps registers in local memory, and enough bytes are in
flight. The last is judged for each launch of LAUNCHES on each GPU of SM: registers, threads and shared memory give the blocks and warps that run on an
SM at once, and the loads that begin before the first of them is needed give the bytes in flight. A GPU for which nothing was built is judged by the
code that it would run.

Needs cuobjdump and nvdisasm: of the CUDA Toolkit, or the wheels that configuring the GPU build installs into build/cuda-tools; CUOBJDUMP names the
first. Without them the test is skipped (77). --occupancy prints the table of docs/performance.md, and checks nothing.
--registers writes the kernels' registers on compute capability 9.0 to a file, for the software GPU
(docs/software-gpu.md), and checks nothing."""

import collections
import dataclasses
import glob
import os
import re
import shutil
import subprocess
import sys

SKIPPED = 77


@dataclasses.dataclass
class Expected:
    kernels: str  # a regular expression, searched for in the demangled names
    count: int  # of them on every architecture
    instructions: dict  # what each must contain: a regular expression that an opcode begins with


ASYNCHRONOUS_COPIES = {"asynchronous 16-byte copies": r"LDGSTS\.E\.BYPASS\.128"}
TENSOR_CORES = ASYNCHRONOUS_COPIES | {
    "products on tensor cores": r"HMMA\.16816\.F32\.BF16",
    "matrices from shared memory": r"LDSM\.16\.M88\.4",
    "transposed matrices from shared memory": r"LDSM\.16\.MT88\.4",
}

# Kernels that memory should bound: they read and write a vector at a time.
READS_16_BYTES = {"16-byte loads": r"LDG\.E\.(\w+\.)*128"}
WRITES_16_BYTES = {"16-byte stores": r"STG\.E\.(\w+\.)*128"}
COPIES_16_BYTES = READS_16_BYTES | WRITES_16_BYTES


def vectors_of(kernel, threads=32):
    """The kernel's instances for rows of whole 16-byte vectors; the others move single elements."""
    return rf"\b{kernel}<simt::Width<{threads}, 16>, (4, float|8, bfloat16)\b"


# A line for each claim about more kernels. No kernel may keep registers in local memory.
EXPECTED = [
    Expected(vectors_of("encoder_forward_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("encoder_backward_token_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("encoder_backward_position_kernel"), 2, COPIES_16_BYTES),
    Expected(r"\blayernorm_forward_kernel<RowTiling<simt::Width<(32|256), 16>, [48], [48]>", 32, COPIES_16_BYTES),
    Expected(r"\blayernorm_backward_wide_kernel<[48], ", 6, COPIES_16_BYTES),
    Expected(vectors_of("rope_kernel", threads=4), 8, COPIES_16_BYTES),
    Expected(vectors_of("weighted_rope_backward_kernel", threads=8), 2, COPIES_16_BYTES),
    Expected(vectors_of("swiglu_forward_kernel", threads=64), 2, COPIES_16_BYTES),
    Expected(vectors_of("swiglu_backward_kernel", threads=64), 2, COPIES_16_BYTES),
    Expected(vectors_of("cross_entropy_kernel", threads=512), 2, COPIES_16_BYTES),
    Expected(vectors_of("capped_cross_entropy_kernel", threads=512), 2, COPIES_16_BYTES),
    Expected(vectors_of("cap_logits_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("relu2_forward_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("relu2_backward_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("cross_entropy_gradient_kernel", threads=512), 2, ASYNCHRONOUS_COPIES | WRITES_16_BYTES),
    Expected(vectors_of("gelu_forward_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("gelu_backward_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("add_bias_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("partial_kernel"), 2, READS_16_BYTES),  # of column_sum.cuh
    Expected(r"\badamw_kernel<simt::Width<32, 16>, 4, (float|bfloat16)>", 2, COPIES_16_BYTES),
    Expected(r"\bglobal_norm_kernel<simt::Width<512, 16>, 4>", 1, READS_16_BYTES),
    Expected(r"\bconvert_kernel<simt::Width<32, 16>, 4, bfloat16, float>", 1, READS_16_BYTES),
    Expected(r"\bconvert_kernel<simt::Width<32, 16>, 4, float, bfloat16>", 1, WRITES_16_BYTES),
    Expected("attention_mma_forward_kernel<", 4, TENSOR_CORES),
    Expected("attention_mma_backward_q_kernel<", 4, TENSOR_CORES),
    Expected("attention_mma_backward_kv_kernel<", 4, TENSOR_CORES),
]


@dataclasses.dataclass
class Launch:
    """A kernel of a training step, as it is launched for GPT-2 124M in bf16."""

    name: str  # in the table
    kernel: str  # a regular expression that one kernel's demangled name matches
    block: int  # threads
    loads: int = 0  # of 16 bytes that a thread must have begun when it uses the first of them; more do not count
    ahead: bool = False  # they are of the next row: their first use lies behind a barrier
    grid: int = 0  # blocks of the whole grid for each SM; 0: more than fit
    shared: int = 0  # bytes of dynamic shared memory of a block
    whole: bool = False  # all of it is being copied at once
    warps: int = 0  # that an SM must have where arithmetic bounds the kernel, and not memory


# 768 channels of bf16 are 3 vectors of 8 for each lane of a warp; a row of 50257 logits is 6282 vectors. Attention copies its tiles of 64 rows while
# it multiplies the tiles before: two warps for each of an SM's four tensor cores, so that one multiplies while the other computes exponentials.
LAUNCHES = [
    Launch("encoder, forward", r"\bencoder_forward_kernel<simt::Width<32, 16>, 8, bfloat16>", 128, 2),
    Launch("layernorm, forward", r"\blayernorm_forward_kernel<RowTiling<simt::Width<32, 16>, 8, 4>, bfloat16, false, true>", 128, 3),
    Launch("residual + layernorm, forward", r"\blayernorm_forward_kernel<RowTiling<simt::Width<32, 16>, 8, 4>, bfloat16, true, true>", 128, 6),
    Launch("RMSNorm, forward", r"\blayernorm_forward_kernel<RowTiling<simt::Width<32, 16>, 8, 4>, bfloat16, false, false>", 128, 3),
    Launch("residual + RMSNorm, forward", r"\blayernorm_forward_kernel<RowTiling<simt::Width<32, 16>, 8, 4>, bfloat16, true, false>", 128, 6),
    Launch("RMSNorm, backward", r"\blayernorm_backward_wide_kernel<8, bfloat16, 1>", 96, 3, ahead=True, grid=6),
    Launch("RoPE", r"\brope_kernel<simt::Width<4, 16>, 8, bfloat16, \(HeadNorm\)0>", 128, 2),
    Launch("RoPE and norm", r"\brope_kernel<simt::Width<4, 16>, 8, bfloat16, \(HeadNorm\)1>", 128, 2),
    Launch("RoPE and norm, backward", r"\brope_kernel<simt::Width<4, 16>, 8, bfloat16, \(HeadNorm\)2>", 128, 4),
    Launch("norm with weights and RoPE", r"\brope_kernel<simt::Width<4, 16>, 8, bfloat16, \(HeadNorm\)3>", 128, 2),
    Launch("norm with weights and RoPE, backward", r"\bweighted_rope_backward_kernel<simt::Width<8, 16>, 8, bfloat16>", 128, 4, grid=4),
    Launch("ReLU squared, forward", r"\brelu2_forward_kernel<simt::Width<32, 16>, 8, bfloat16>", 256, 4),
    Launch("ReLU squared, backward", r"\brelu2_backward_kernel<simt::Width<32, 16>, 8, bfloat16>", 256, 2),
    Launch("SwiGLU, forward", r"\bswiglu_forward_kernel<simt::Width<64, 16>, 8, bfloat16>", 64, 2),
    Launch("SwiGLU, backward", r"\bswiglu_backward_kernel<simt::Width<64, 16>, 8, bfloat16>", 64, 3),
    Launch("GELU, forward", r"\bgelu_forward_kernel<simt::Width<32, 16>, 8, bfloat16>", 256, 4),
    Launch("classifier with gradient", r"\bcross_entropy_gradient_kernel<simt::Width<512, 16>, 8, bfloat16>", 512, grid=2, shared=6282 * 16, whole=True),
    Launch("GELU, backward", r"\bgelu_backward_kernel<simt::Width<32, 16>, 8, bfloat16>", 256, 2),
    Launch("layernorm, backward", r"\blayernorm_backward_wide_kernel<8, bfloat16, 2>", 96, 3, ahead=True, grid=6),
    Launch("layernorm, backward with a third sum", r"\blayernorm_backward_wide_kernel<8, bfloat16, 3>", 96, 3, ahead=True, grid=6),
    Launch("bias gradient by column sums", r"\bpartial_kernel<simt::Width<32, 16>, 8, bfloat16>", 256, 8, shared=8320),
    Launch("encoder, backward by token", r"\bencoder_backward_token_kernel<simt::Width<32, 16>, 8, bfloat16>", 256, 8, shared=8320),
    Launch("encoder, backward by position", r"\bencoder_backward_position_kernel<simt::Width<32, 16>, 8, bfloat16>", 128, 8),
    Launch("gradient norm", r"\bglobal_norm_kernel<simt::Width<512, 16>, 4>", 512, 3),
    Launch("AdamW", r"\badamw_kernel<simt::Width<32, 16>, 4, bfloat16>", 256, 4),
    Launch("attention, forward", r"\battention_mma_forward_kernel<64, ", 128, shared=36864, warps=8),
    Launch("attention, backward of q", r"\battention_mma_backward_q_kernel<64, ", 128, shared=36864, warps=8),
    Launch("attention, backward of k and v", r"\battention_mma_backward_kv_kernel<64, ", 128, shared=37888, warps=8),
]
# A byte takes about this long from memory to an SM that uses its share of the bandwidth: 800 cycles of an H200 (kernels/elementwise.cuh).
LATENCY = 480e-9


@dataclasses.dataclass
class Multiprocessor:
    """An SM's limits by compute capability, from the CUDA C++ Programming Guide; and the bandwidth and SMs of a GPU that has it, from its data sheet."""

    warps: int
    blocks: int
    shared: int  # bytes of all blocks; each block takes 1 KiB beside its own
    gpu: str
    bandwidth: float  # bytes a second
    count: int

    def least_in_flight(self):
        """Bytes that must always be on their way to an SM, or memory is not busy."""
        return self.bandwidth * LATENCY / self.count


SM = {
    80: Multiprocessor(64, 32, 164 * 1024, "A100", 2039e9, 108),
    86: Multiprocessor(48, 16, 100 * 1024, "RTX 3090", 936e9, 82),
    89: Multiprocessor(48, 24, 100 * 1024, "RTX 4090", 1008e9, 128),
    90: Multiprocessor(64, 32, 228 * 1024, "H200", 4800e9, 132),
    100: Multiprocessor(64, 32, 228 * 1024, "B200", 8000e9, 148),
    120: Multiprocessor(48, 24, 100 * 1024, "RTX 5090", 1792e9, 170),
}


def find_cuobjdump():
    places = [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump")]
    places += [os.path.join(os.environ.get(name, ""), "bin/cuobjdump") for name in ("CUDA_HOME", "CUDA_PATH")]
    places += ["/usr/local/cuda/bin/cuobjdump"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in [*glob.glob(os.path.join(root, "build/cuda-tools/lib/python3*/site-packages")), *sys.path]:
        places += sorted(glob.glob(os.path.join(folder, "nvidia/**/bin/cuobjdump"), recursive=True))
    # It starts nvdisasm, which lies beside it or in PATH.
    return next((place for place in places if place and os.access(place, os.X_OK) and shutil.which("nvdisasm", path=search_path(place))), None)


def search_path(cuobjdump):
    return os.path.dirname(cuobjdump) + os.pathsep + os.environ.get("PATH", "")


def demangled(names):
    names = sorted(set(names))
    lines = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout.splitlines()
    return dict(zip(names, lines))


@dataclasses.dataclass
class Kernel:
    lines: list = dataclasses.field(default_factory=list)  # (opcode, operands) in the order of their addresses
    registers: int = 0  # of a thread
    shared: int = 0  # bytes of static shared memory of a block

    @property
    def opcodes(self):
        return collections.Counter(opcode for opcode, _ in self.lines)


def output_lines(cuobjdump, option, path):
    environment = dict(os.environ, PATH=search_path(cuobjdump))
    with subprocess.Popen([cuobjdump, option, path], env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield from process.stdout
    if process.returncode != 0:
        sys.exit(f"{cuobjdump} {option} {path} failed")


def read_kernels(cuobjdump, path):
    """{(architecture, mangled name): Kernel}"""
    kernels, kernel, architecture = collections.defaultdict(Kernel), Kernel(), None
    for line in output_lines(cuobjdump, "-sass", path):
        if match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*)", line):
            kernel.lines.append((match[1], match[2]))
        elif match := re.match(r"\s*Function : (\S+)", line):
            kernel = kernels[architecture, match[1]]
        elif match := re.match(r"\s*code for sm_(\d+)", line):
            architecture = int(match[1])
    for key, resources in read_resources(cuobjdump, path).items():
        if key in kernels:
            kernels[key].registers, kernels[key].shared = resources.registers, resources.shared
    return kernels


def read_resources(cuobjdump, path):
    """{(architecture, mangled name): Kernel}, without the instructions"""
    kernels, architecture, name = {}, None, None
    for line in output_lines(cuobjdump, "-res-usage", path):
        if match := re.match(r"arch = sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+).* SHARED:(\d+)", line):
            # From 9.0 on these include the 1 KiB that a block takes beside its own.
            reserved = 1024 if architecture >= 90 else 0
            shared = max(0, int(match[2]) - reserved)
            kernels[architecture, name] = Kernel(registers=int(match[1]), shared=shared)
    return kernels


def blocks_of_sm(kernel, block, shared, architecture):
    """The blocks of these threads and dynamic shared memory that an SM holds at once; 0 if none fits. Each of an SM's four parts has 16,384 registers,
    which warps get in units of 256."""
    sm, warps = SM[architecture], -(-block // 32)
    registers = -(-kernel.registers * 32 // 256) * 256  # of a warp
    by_registers = 4 * (16384 // registers) // warps if registers else sm.blocks
    return min(sm.warps // warps, sm.blocks, by_registers, sm.shared // (kernel.shared + shared + 1024))


def warps_of_sm(kernel, block, shared, architecture):
    return blocks_of_sm(kernel, block, shared, architecture) * -(-block // 32)


def loads_in_flight(kernel, ahead):
    """The most 16-byte loads that have begun before one of them is used, in the order of the instructions; with ahead, those not used before a
    barrier that follows them."""
    most, pending, barriers, across = 0, {}, 0, 0
    for opcode, operands in kernel.lines:
        used = {int(register) for register in re.findall(r"\bR(\d+)\b", operands)}
        barriers += opcode.startswith("BAR.SYNC")
        loads = re.match(READS_16_BYTES["16-byte loads"], opcode)
        # A load reads its address and writes its result, the first operand.
        target = int(re.match(r"\s*R(\d+)", operands)[1]) if loads else None
        reads = used - {target} if loads else used
        if any(set(range(first, first + 4)) & reads for first in pending):
            most = max(most, len(pending))
            across = max(across, sum(barriers > begun for begun in pending.values()))
            pending = {first: begun for first, begun in pending.items() if not set(range(first, first + 4)) & reads}
        if loads:
            pending[target] = barriers
    most = max(most, len(pending))
    across = max(across, sum(barriers > begun for begun in pending.values()))
    return across if ahead else most


@dataclasses.dataclass
class Occupancy:
    launch: Launch
    kernel: Kernel
    blocks: int  # that run on an SM at once
    by_shared: int  # that its shared memory has room for
    loads: int  # that the machine code begins before the first is used

    @property
    def warps(self):
        return self.blocks * -(-self.launch.block // 32)

    @property
    def in_flight(self):
        """Bytes; 0 where arithmetic bounds the kernel."""
        if self.launch.whole:
            return self.blocks * self.launch.shared
        return self.blocks * self.launch.block * 16 * min(self.loads, self.launch.loads)


def occupancy(launch, kernels, architecture):
    """The Occupancy of a launch on a GPU of this compute capability, or a fault."""
    found = {name: kernel for name, kernel in kernels.items() if re.search(launch.kernel, name)}
    if len(found) != 1:
        return f"{len(found)} kernels are called {launch.kernel}; expected 1"
    (kernel,) = found.values()
    most = launch.grid or SM[architecture].blocks
    blocks = min(most, blocks_of_sm(kernel, launch.block, launch.shared, architecture))
    by_shared = min(most, SM[architecture].shared // (kernel.shared + launch.shared + 1024))
    return Occupancy(launch, kernel, blocks, by_shared, loads_in_flight(kernel, launch.ahead))


def described(found, architecture):
    launch = found.launch
    text = f"{launch.name}: {found.kernel.registers} registers, {found.warps} warps in blocks of {launch.block // 32} an SM"
    if launch.warps:
        return f"{text}; wanted: {launch.warps} warps"
    if launch.whole:
        text += f", copies of {launch.shared} bytes a block"
    else:
        text += f", {found.loads} loads of 16 bytes begin before {'a barrier and ' if launch.ahead else ''}their first use"
    return f"{text}: {found.in_flight / 1024:.0f} KiB in flight; wanted: {SM[architecture].least_in_flight() / 1024:.0f}"


def fault_of(found, architecture):
    """The resource that the launch lacks, or None."""
    launch = found.launch
    if found.blocks == 0:
        return "no block fits on an SM"
    if found.loads < launch.loads:
        return f"expected {launch.loads} loads"
    if found.warps < launch.warps:
        return f"expected {launch.warps} warps"
    if not launch.warps and found.in_flight < SM[architecture].least_in_flight():
        return "too little is in flight"
    # A grid of few blocks counts on all of them running at once, unless shared memory has no room for them.
    if launch.grid and found.blocks < found.by_shared:
        return f"registers leave room for fewer than {found.by_shared} blocks"
    return None


def code_for(architecture, built):
    """The newest of these architectures whose code a GPU of this compute capability runs, or None."""
    return max((other for other in built if other // 10 == architecture // 10 and other <= architecture), default=None)


def judge_occupancy(of_architecture):
    """(lines, faults) for every GPU of SM whose code is there."""
    lines, faults = [], []
    for architecture in SM:
        code = code_for(architecture, of_architecture)
        for launch in LAUNCHES if code else []:
            found = occupancy(launch, of_architecture[code], architecture)
            prefix = f"sm_{architecture}" + (f" (code of sm_{code})" if code != architecture else "")
            if isinstance(found, str):
                faults.append(f"{prefix}: {found}")
                continue
            lines.append(f"{prefix} {described(found, architecture)}")
            if fault := fault_of(found, architecture):
                faults.append(f"{lines[-1]}; {fault}")
    return lines, faults


def print_occupancy(of_architecture):
    """The table of docs/performance.md."""
    shown = {architecture: code_for(architecture, of_architecture) for architecture in SM}
    shown = {architecture: code for architecture, code in shown.items() if code}
    rows = [["kernel", "threads a block", "loads begun"] + [f"{SM[a].gpu} ({a / 10:.1f})" for a in shown]]
    rows += [["---"] * len(rows[0])]
    rows += [["wanted in flight", "", ""] + [f"{SM[a].least_in_flight() / 1024:.0f} KiB" for a in shown]]
    for launch in LAUNCHES:
        found = [occupancy(launch, of_architecture[code], a) for a, code in shown.items()]
        if missing := next((fault for fault in found if isinstance(fault, str)), None):
            sys.exit(missing)
        loads = "a row" if launch.whole else launch.loads or ""
        cells = [f"{f.warps}" if launch.warps else f"{f.warps}: {f.in_flight / 1024:.0f}" for f in found]
        rows.append([launch.name, str(launch.block), str(loads), *cells])
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))


def faults_of(expected, kernels):
    """kernels: {name: Kernel} of one architecture"""
    found = {name: kernel.opcodes for name, kernel in kernels.items() if re.search(expected.kernels, name)}
    if len(found) != expected.count:
        yield f"{len(found)} kernels are called {expected.kernels}; expected {expected.count}"
    for name, opcodes in sorted(found.items()):
        for what, pattern in expected.instructions.items():
            if not any(re.match(pattern, opcode) for opcode in opcodes):
                yield f"{name}: no {what} ({pattern})"
        if any(opcode.startswith(("LDL", "STL")) for opcode in opcodes):
            yield f"{name}: keeps registers in local memory"


def write_registers(cuobjdump, archive, path):
    """Writes a line for each kernel: its mangled name, and a thread's registers. Without cuobjdump there is no line."""
    found = read_resources(cuobjdump, archive) if cuobjdump else {}
    lines = [f"{name} {kernel.registers}\n" for (sm, name), kernel in found.items() if sm == 90]
    with open(path, "w") as file:
        file.writelines(lines)


def main():
    archive = sys.argv[1]
    cuobjdump = find_cuobjdump()
    if sys.argv[2:3] == ["--registers"]:
        return write_registers(cuobjdump, archive, sys.argv[3])
    if not cuobjdump:
        print("skipped: cuobjdump and nvdisasm are not installed (CUDA Toolkit, or pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return SKIPPED
    of_architecture = collections.defaultdict(dict)
    found = read_kernels(cuobjdump, archive)
    names = demangled(name for _, name in found)
    for (architecture, name), kernel in found.items():
        of_architecture[architecture][names[name]] = kernel
    # Turing has no tensor cores for bf16: what is built for it is fp32's.
    judged = sorted(architecture for architecture in of_architecture if architecture >= 80)
    faults = []
    for architecture, kernels in sorted(of_architecture.items()):
        if architecture not in judged:
            continue
        faults += [f"sm_{architecture}: {fault}" for expected in EXPECTED for fault in faults_of(expected, kernels)]
    if "--occupancy" in sys.argv:
        return print_occupancy(of_architecture)
    lines, too_few = judge_occupancy({architecture: of_architecture[architecture] for architecture in judged})
    faults += too_few
    if lines:
        print("\n".join(lines))
    if not of_architecture:
        faults.append(f"{archive} holds no kernels")
    elif not judged:
        print("skipped: built for GPUs without tensor cores for bf16 only")
        return SKIPPED
    for fault in faults:
        print(fault)
    print(f"{sum(expected.count for expected in EXPECTED)} kernels on {len(judged)} architectures, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
