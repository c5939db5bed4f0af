"""Reads the machine code of the GPU build's kernels: test_machine_code.py build/cuda/cmake/gpu/libflatgpt_gpu.a
[--print | --registers FILE]

Three things are checked: kernels bound by memory move 16 bytes per instruction, none keeps registers in local memory, and enough bytes are in
flight. The last is reported for each kernel of IN_FLIGHT: its registers, the warps that fit on an SM, and the loads that begin before the first
of them is needed.

Needs cuobjdump and nvdisasm: of the CUDA Toolkit, or the wheels that configuring the GPU build installs into build/cuda-tools; CUOBJDUMP names the
first. Without them the test is skipped (77). --print adds the number of instructions of each kind in each kernel.
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
    Expected(vectors_of("encoder_backward_place_kernel"), 2, COPIES_16_BYTES),
    Expected(r"\blayernorm_forward_kernel<RowCut<simt::Width<(32|256), 16>, [48], [48]>", 16, COPIES_16_BYTES),
    Expected(r"\blayernorm_backward_wide_kernel<[48], ", 4, COPIES_16_BYTES),
    Expected(vectors_of("cross_entropy_kernel", threads=512), 2, COPIES_16_BYTES),
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
class InFlight:
    kernel: str  # a regular expression that one kernel's demangled name matches
    block: int  # threads, as launched for GPT-2 124M in bf16
    loads: int  # of 16 bytes that must have begun when the first of them is used; where the threads have `vectors` of them, no more are needed
    ahead: bool = False  # they are of the next row: their first use lies behind a barrier
    blocks: int = 1  # intended number of blocks on an SM of an H200 at once
    shared: int = 0  # bytes of dynamic shared memory of a block
    whole: bool = False  # all of it is being copied at once


# 768 channels of bf16 are 3 vectors of 8 for each lane of a warp; a row of 50257 logits is 6282 vectors.
IN_FLIGHT = [
    InFlight(r"\blayernorm_forward_kernel<RowCut<simt::Width<32, 16>, 8, 4>, bfloat16, false>", 128, 3),
    InFlight(r"\blayernorm_forward_kernel<RowCut<simt::Width<32, 16>, 8, 4>, bfloat16, true>", 128, 6),
    InFlight(r"\blayernorm_backward_wide_kernel<8, bfloat16, 2>", 96, 3, ahead=True, blocks=6),
    InFlight(r"\blayernorm_backward_wide_kernel<8, bfloat16, 3>", 96, 3, ahead=True, blocks=6),
    InFlight(r"\bcross_entropy_gradient_kernel<simt::Width<512, 16>, 8, bfloat16>", 512, 0, blocks=2, shared=6282 * 16, whole=True),
]
# A byte takes about 800 cycles from memory to an SM that uses its share of an H200's bandwidth, 21 bytes a cycle (kernels/elementwise.cuh).
LEAST_IN_FLIGHT = 17 * 1024
# Limits of an SM, by architecture: warps, blocks, bytes of shared memory. Each of its four parts has 16,384 registers,
# which are allocated to warps in units of 256; each block takes 1 KiB of shared memory beside its own.
SM = {80: (64, 32, 164 * 1024), 90: (64, 32, 228 * 1024), 100: (64, 32, 228 * 1024), 120: (48, 24, 100 * 1024)}


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


def warps_of_sm(kernel, block, shared, architecture):
    """The warps that an SM holds, of blocks of these threads and dynamic shared memory; 0 if no block fits."""
    most_warps, most_blocks, shared_of_sm = SM[architecture]
    warps = -(-block // 32)
    registers = -(-kernel.registers * 32 // 256) * 256  # of a warp
    by_registers, by_shared = 4 * (16384 // registers) // warps, shared_of_sm // (kernel.shared + shared + 1024)
    return min(most_warps // warps, most_blocks, by_registers, by_shared) * warps


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


def judge_in_flight(expected, kernels, architecture):
    """(a line with the result, its fault or None)"""
    found = {name: kernel for name, kernel in kernels.items() if re.search(expected.kernel, name)}
    if len(found) != 1:
        return None, f"{len(found)} kernels are called {expected.kernel}; expected 1"
    ((name, kernel),) = found.items()
    warps = warps_of_sm(kernel, expected.block, expected.shared, architecture)
    name = re.search(r"(\w+<.*?)\(", name)[1]
    stated = f"{name}: {kernel.registers} registers, {warps} warps an SM, "
    if expected.whole:
        in_flight = warps * 32 // expected.block * expected.shared
        stated += f"copies of {expected.shared} bytes a block"
        few = None
    else:
        loads = loads_in_flight(kernel, expected.ahead)
        in_flight = warps * 32 * 16 * min(loads, expected.loads)
        stated += f"{loads} loads of 16 bytes begin before {'a barrier and ' if expected.ahead else ''}their first use"
        few = loads < expected.loads and f"expected {expected.loads} loads"
    stated += f": {in_flight / 1024:.0f} KiB in flight"
    # Other GPUs need less in flight, because their memory is slower, and may have shared memory for fewer blocks.
    if not few and architecture in (90, 100):
        if in_flight < LEAST_IN_FLIGHT:
            few = f"expected at least {LEAST_IN_FLIGHT // 1024} KiB"
        elif warps * 32 // expected.block < expected.blocks:
            few = f"expected {expected.blocks} blocks of {expected.block} threads"
    return stated, few and f"{stated}; {few}"


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


def print_table(kernels):
    kinds = ("HMMA", "LDSM", "LDGSTS", "LDG", "STG", "LDS", "STS", "LDL", "STL", "MUFU", "FFMA", "FMUL", "FADD", "SHFL", "BAR")
    for name, kernel in sorted(kernels.items()):
        opcodes, counts = kernel.opcodes, collections.Counter()
        for opcode, count in opcodes.items():
            counts[opcode.split(".")[0]] += count
        print(f"  {name}: {sum(opcodes.values())} instructions, " + ", ".join(f"{kind} {counts[kind]}" for kind in kinds if counts[kind]))


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
        if "--print" in sys.argv:
            print(f"sm_{architecture}")
            print_table(kernels)
        if architecture not in judged:
            continue
        faults += [f"sm_{architecture}: {fault}" for expected in EXPECTED for fault in faults_of(expected, kernels)]
        for expected in IN_FLIGHT if architecture in SM else []:
            stated, fault = judge_in_flight(expected, kernels, architecture)
            if stated:
                print(f"sm_{architecture} {stated}")
            if fault:
                faults.append(f"sm_{architecture}: {fault}")
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
