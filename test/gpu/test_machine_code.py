"""What the GPU build's kernels are made of, read from their machine code: test_machine_code.py build/cuda/cmake/gpu/libflatgpt_gpu.a [--print]
Needs cuobjdump and nvdisasm (CUDA Toolkit, or the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm); CUOBJDUMP names the first. Without them the
test is skipped (77). --print adds a table of how often each kernel has which kind of instruction."""

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


TENSOR_CORES = {
    "products on tensor cores": r"HMMA\.16816\.F32\.BF16",
    "matrices from shared memory": r"LDSM\.16\.M88\.4",
    "transposed matrices from shared memory": r"LDSM\.16\.MT88\.4",
    "asynchronous 16-byte copies": r"LDGSTS\.E\.BYPASS\.128",
}

# Kernels that memory is to bound: what they read and write a vector at a time.
READS_16_BYTES = {"16-byte loads": r"LDG\.E\.(\w+\.)*128"}
WRITES_16_BYTES = {"16-byte stores": r"STG\.E\.(\w+\.)*128"}
COPIES_16_BYTES = READS_16_BYTES | WRITES_16_BYTES


def vectors_of(kernel, threads=32):
    """The kernel's instances for rows that are whole vectors of 16 bytes; others go element by element."""
    return rf"\b{kernel}<simt::Width<{threads}, 16>, (4, float|8, bfloat16)\b"


# Add a line for what is to be proved of more kernels. None of them may keep registers in local memory either.
EXPECTED = [
    Expected(vectors_of("encoder_forward_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("encoder_backward_token_kernel"), 2, COPIES_16_BYTES),
    Expected(vectors_of("encoder_backward_place_kernel"), 2, COPIES_16_BYTES),
    Expected(r"\blayernorm_forward_kernel<RowCut<simt::Width<(32|256), 16>, [48], [48]>", 16, COPIES_16_BYTES),
    Expected(r"\blayernorm_backward_kernel<RowCut<simt::Width<(32|256), 16>, [48], [48]>", 16, COPIES_16_BYTES),
    Expected(vectors_of("cross_entropy_kernel", threads=512), 4, COPIES_16_BYTES),
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


def find_cuobjdump():
    places = [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump")]
    places += [os.path.join(os.environ.get(name, ""), "bin/cuobjdump") for name in ("CUDA_HOME", "CUDA_PATH")]
    places += ["/usr/local/cuda/bin/cuobjdump"]
    for folder in sys.path:
        places += sorted(glob.glob(os.path.join(folder, "nvidia/**/bin/cuobjdump"), recursive=True))
    # It starts nvdisasm, which lies beside it or in PATH.
    return next((place for place in places if place and os.access(place, os.X_OK) and shutil.which("nvdisasm", path=search_path(place))), None)


def search_path(cuobjdump):
    return os.path.dirname(cuobjdump) + os.pathsep + os.environ.get("PATH", "")


def demangled(names):
    names = sorted(set(names))
    lines = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout.splitlines()
    return dict(zip(names, lines))


def instructions_of_kernels(cuobjdump, path):
    """{(architecture, mangled name): how often it has which opcode}"""
    kernels, opcodes, architecture = {}, collections.Counter(), None
    environment = dict(os.environ, PATH=search_path(cuobjdump))
    with subprocess.Popen([cuobjdump, "-sass", path], env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
                opcodes[match[1]] += 1
            elif match := re.match(r"\s*Function : (\S+)", line):
                opcodes = kernels[architecture, match[1]] = collections.Counter()
            elif match := re.match(r"\s*code for sm_(\d+)", line):
                architecture = int(match[1])
    if process.returncode != 0:
        sys.exit(f"{cuobjdump} -sass {path} failed")
    return kernels


def faults_of(expected, kernels):
    """kernels: {name: opcodes} of one architecture"""
    found = {name: opcodes for name, opcodes in kernels.items() if re.search(expected.kernels, name)}
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
    for name, opcodes in sorted(kernels.items()):
        counts = collections.Counter()
        for opcode, count in opcodes.items():
            counts[opcode.split(".")[0]] += count
        print(f"  {name}: {sum(opcodes.values())} instructions, " + ", ".join(f"{kind} {counts[kind]}" for kind in kinds if counts[kind]))


def main():
    archive = sys.argv[1]
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        print("skipped: cuobjdump and nvdisasm are not installed (CUDA Toolkit, or pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return SKIPPED
    of_architecture = collections.defaultdict(dict)
    instructions = instructions_of_kernels(cuobjdump, archive)
    names = demangled(name for _, name in instructions)
    for (architecture, name), opcodes in instructions.items():
        of_architecture[architecture][names[name]] = opcodes
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
