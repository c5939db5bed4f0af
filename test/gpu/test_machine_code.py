"""What the GPU build's kernels are made of, read from their machine code: test_machine_code.py build/cuda/libflatgpt_gpu.a
Needs cuobjdump (CUDA Toolkit, or the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm); CUOBJDUMP names one. Without it the test is skipped (77).
--print adds a table of registers and instructions."""

import collections
import glob
import os
import re
import shutil
import subprocess
import sys

SKIPPED = 77


def find_cuobjdump():
    places = [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump")]
    places += [os.path.join(os.environ.get(name, ""), "bin/cuobjdump") for name in ("CUDA_HOME", "CUDA_PATH")]
    places += ["/usr/local/cuda/bin/cuobjdump"]
    for folder in sys.path:
        places += sorted(glob.glob(os.path.join(folder, "nvidia/**/bin/cuobjdump"), recursive=True))
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def run(cuobjdump, *arguments):
    # cuobjdump starts nvdisasm, which lies beside it.
    environment = dict(os.environ, PATH=os.path.dirname(cuobjdump) + os.pathsep + os.environ["PATH"])
    return subprocess.run([cuobjdump, *arguments], env=environment, check=True, capture_output=True, text=True).stdout


def instructions_of_kernels(cuobjdump, path):
    """{(architecture, kernel): [opcode, ...]}"""
    kernels, opcodes, architecture = {}, [], None
    for line in run(cuobjdump, "-sass", path).splitlines():
        if match := re.match(r"\s*code for sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.match(r"\s*Function : (\S+)", line):
            opcodes = kernels[architecture, match[1]] = []
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
            opcodes.append(match[1])
    return kernels


def main():
    archive = sys.argv[1]
    cuobjdump = find_cuobjdump()
    if not cuobjdump:
        print("skipped: cuobjdump is not installed (CUDA Toolkit, or pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return SKIPPED
    kernels = {key: opcodes for key, opcodes in instructions_of_kernels(cuobjdump, archive).items() if "attention_mma" in key[1]}
    faults = []
    if {re.search(r"forward|backward_q|backward_kv", name)[0] for _, name in kernels} != {"forward", "backward_q", "backward_kv"}:
        faults.append(f"the attention kernels for tensor cores are not all there: {sorted(kernels)}")
    for (architecture, name), opcodes in sorted(kernels.items()):
        counts = collections.Counter(opcodes)

        def count(prefix):
            return sum(n for opcode, n in counts.items() if opcode.startswith(prefix))

        if "--print" in sys.argv:
            columns = ("HMMA", "LDSM", "MUFU", "F2FP", "FFMA", "FMUL", "FADD", "FMNMX", "LDGSTS", "BAR")
            print(f"sm_{architecture} {name}: {len(opcodes)} instructions, " + ", ".join(f"{c} {count(c)}" for c in columns))
        if architecture < 80:
            continue
        expected = {
            "products on tensor cores": "HMMA.16816.F32.BF16",
            "matrices from shared memory": "LDSM.16.M88.4",
            "transposed matrices from shared memory": "LDSM.16.MT88.4",
            "asynchronous 16-byte copies": "LDGSTS.E.BYPASS.128",
        }
        for what, opcode in expected.items():
            if count(opcode) == 0:
                faults.append(f"sm_{architecture} {name}: no {what} ({opcode})")
        if count("LDL") + count("STL") > 0:
            faults.append(f"sm_{architecture} {name}: registers are spilled to local memory")
    for fault in faults:
        print(fault)
    print(f"{len(kernels)} attention kernels, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
