#!/usr/bin/env python3
"""How long a run takes on GPUs that need not be there, from what --plan prints: an estimate, nothing is measured.

    ./train_gpt2 OPTION... --plan --device-memory 79G | dev/expected_time.py --gpu H100
    ./train_gpt2 OPTION... --plan --device-memory 79G --world-size 64 | dev/expected_time.py --gpu H100 --link nvlink4 --network ndr8

With a link it also says what communication costs, by the alpha-beta model of rings and trees: an operation takes the latency (alpha) of all its steps and
the bytes that each process sends over the bandwidth (beta) of the slowest link. The model knows no stragglers, no congestion and no cost of computing
and communicating at once; docs/distributed.md says where it holds.
"""

import argparse
import dataclasses
import math
import pathlib
import re
import sys

RATES = pathlib.Path(__file__).resolve().parent.parent / "trainer" / "run" / "nvidia_rates.inc"
SHARE = 0.38  # of a GPU's peak: llm.c reaches that with 124M on an H100

# (bytes per second in each direction, seconds that a step of a ring takes besides its bytes). Bandwidths are what nccl-tests measures as "busbw" of rings
# on such links (A100: at most 235 GB/s; H100: 370; InfiniBand: 95 % of the line). Latencies are those that NCCL itself assumes for a step of a ring
# (its src/graph/tuning.cc, protocol Simple); those of ethernet, by TCP, are guesses.
LINKS = {
    "nvlink3": (235e9, 3.4e-6),  # A100
    "nvlink4": (370e9, 3.4e-6),  # H100, H200
    "pcie4": (20e9, 5.7e-6),  # 16 lanes
    "hdr1": (24e9, 9.6e-6),  # one InfiniBand card of 200 Gb/s
    "hdr8": (190e9, 9.6e-6),  # eight of them
    "ndr8": (370e9, 9.6e-6),  # eight of 400 Gb/s
    "ethernet10": (1.1e9, 30e-6),
    "ethernet100": (11e9, 30e-6),
}
# A step of a tree waits for a chunk, not for a message: by NCCL's figures 28 us against 3.4 within a machine, 50 against 9.6 between them.
TREE_STEP_WITHIN, TREE_STEP_BETWEEN, TREE_BANDWIDTH = 8.2, 5.2, 0.9


@dataclasses.dataclass
class Machines:
    within: tuple  # the link between the processes of a machine
    between: tuple  # the link between machines, over all network cards of a machine together
    per_machine: int = 8


def link(text):
    """A link by its name, or by GB/s and microseconds: "235,3.4"."""
    if text in LINKS:
        return LINKS[text]
    try:
        gigabytes, microseconds = (float(number) for number in text.split(","))
        if 0 < gigabytes < 1e6 and 0 <= microseconds < 1e6:
            return gigabytes * 1e9, microseconds * 1e-6
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text}; expected one of {', '.join(LINKS)}, or GB/s and microseconds such as 235,3.4")


def positive(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}; expected a number above 0")
    return value


def peak(gpu, dtype):
    """FLOP/s of the GPU by NVIDIA's table, which it is looked up in as by peaks.cu; 0 if it is not there."""
    skipped = re.compile(r"NVIDIA|TESLA|GEFORCE|AC|LC|40GB|80GB|120GB|480GB|144G|HBM.*|SXM.*")
    name = " ".join(word for word in gpu.upper().replace("-", " ").split() if not skipped.fullmatch(word))
    row = re.search(rf'^\{{"{re.escape(name)}", (.*), (.*), (.*)\}},$', RATES.read_text(), re.MULTILINE)
    return 1e12 * float(row[("bf16", "tf32", "fp32").index(dtype) + 1]) if row else 0


def collective_seconds(kind, size, processes, machines):
    """Seconds for an all-reduce, a reduce-scatter, an all-gather or a broadcast of so many bytes, in all parts together."""
    count, local = -(-processes // machines.per_machine), min(processes, machines.per_machine)
    links = [machines.within] * (local > 1) + [machines.between] * (count > 1)
    if not links:
        return 0
    bandwidth = min(bytes_per_second for bytes_per_second, _ in links)
    # Once around the ring. A part crosses from machine to machine count - 1 times.
    latency = (processes - count) * machines.within[1] + (count - 1) * machines.between[1]
    # A broadcast passes everything on, the others all but a process's own part.
    once = latency + size * (1 if kind == "broadcast" else (processes - 1) / processes) / bandwidth
    if kind != "all-reduce":
        return once
    up = (local - 1) * TREE_STEP_WITHIN * machines.within[1] + math.ceil(math.log2(count)) * TREE_STEP_BETWEEN * machines.between[1]
    return min(2 * once, 2 * (up + size / (TREE_BANDWIDTH * bandwidth)))  # as NCCL chooses


def number(pattern, plan):
    found = re.search(pattern, plan, re.MULTILINE)
    return float(found[1]) if found else 0


SENT = re.compile(r"([\d.]+) MiB of (matrices' )?(gradients|parameters) \(\w+, (all-reduce|reduce-scatter|all-gather|broadcast)\)")


def collectives(plan):
    """The messages that a process sends in a step by the plan: [(MiB, "matrices' " or "", "gradients" or "parameters", kind)]. None if the plan does not say it."""
    line = re.search(r"^each of \d+ processes sends .*", plan, re.MULTILINE)
    found = SENT.findall(line[0]) if line else []
    return found if found and len(found) == line[0].count(" MiB of ") else None


def step_seconds(plan, tokens_per_second, machines):
    """(computation, communication, the part of it that no computation hides) of a step, in which a process has so many tokens per second."""
    processes, buckets = int(number(r"^each of (\d+) processes", plan)), number(r"in (\d+) buckets", plan)
    matrices = number(r"buckets \((\d+) of them matrices\)", plan)
    compute = number(r"^step: (\d+) tokens", plan) / processes / tokens_per_second
    forward = compute / number(r"x (\d+) micro-steps?$", plan) / 3
    # The gradients of the embeddings are complete only at the end of backward, and the next forward pass begins with them.
    embeddings = number(r" (\d+) channels", plan) * (number(r"padded to (\d+)", plan) + number(r"context (\d+)", plan)) / number(r"(\d+) parameters$", plan)
    communication = exposed = collective_seconds("all-reduce", 4 * 4, processes, machines)  # loss, gradient norm and two flags
    for phase, hidden in (("gradients", 2 * forward), ("parameters", forward)):
        sizes, seconds = {}, {}  # of Muon's matrices, which are sent whole, and of all else
        for mebibytes, of, what, kind in collectives(plan):
            if what == phase:
                count, sent = matrices if of else buckets - matrices, float(mebibytes) * 2**20
                sizes[of] = sent * {"all-reduce": processes / (processes - 1) / 2, "broadcast": 1}.get(kind, processes / (processes - 1))
                seconds[of] = count * collective_seconds(kind, sizes[of] / count, processes, machines)
        if sizes:
            total = sum(seconds.values())
            communication += total
            exposed += max(min(1, embeddings * sum(sizes.values()) / sizes[""]) * seconds[""], total - hidden)
    return compute, communication, exposed


def communication_line(plan, tokens_per_second, machines):
    compute, communication, exposed = step_seconds(plan, tokens_per_second, machines)
    speed = number(r"^step: (\d+) tokens", plan) / (compute + exposed)
    return (
        f"communication (a model): {1e3 * communication:.1f} ms of a step's {1e3 * (compute + exposed):.1f}; {1e3 * exposed:.1f} ms of it are not hidden by "
        f"computation, which costs {100 * exposed / (compute + exposed):.1f} % of the time ({100 * communication / (compute + communication):.1f} % "
        f"if nothing were hidden) and leaves {speed:.0f} tokens/s"
    )


def time_line(plan, tokens_per_second, source):
    processes = int(number(r"^each of (\d+) processes", plan)) or 1
    among = f" of {processes} processes" if processes > 1 else ""
    rate = f"{processes * tokens_per_second:.0f} tokens/s{among} ({source})"
    steps = number(r"^run: (\d+) steps", plan)
    if not steps:
        return f"time: unknown, because the length of the data is; at {rate}"
    hours = steps * number(r"^step: (\d+) tokens", plan) / (processes * tokens_per_second) / 3600
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    return f"time: {length}{f' ({hours / 24:.0f} days)' if hours >= 100 else ''} at {rate}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(2, f"expected_time: {message}; --help shows the usage\n")
    parser.add_argument("--gpu", help="such as H100 (default: the plan's)")
    parser.add_argument("--tokens-per-second", type=positive, metavar="X", help=f"measured speed of one GPU (default: {100 * SHARE:.0f} %% of its peak)")
    parser.add_argument("--link", type=link, help=f"between the GPUs of a machine: {', '.join(LINKS)}, or GB/s and microseconds, such as 235,3.4")
    parser.add_argument("--network", type=link, help="between machines, over all network cards of a machine together")
    parser.add_argument("--gpus-per-machine", type=positive, default=8, metavar="N")
    options = parser.parse_args()
    plan = sys.stdin.read()
    device = re.search(r"^(bf16|tf32|fp32) on (.*?)(, \d+ processes over .*)?$", plan, re.MULTILINE)
    work = number(r"^work: (\d+) FLOP", plan)
    if not device or not work:
        parser.exit(2, "expected_time: standard input has no plan; expected what train_gpt2 --plan prints\n")
    if re.search(r"^step: .* \d+ processes", plan, re.MULTILINE) and not collectives(plan):
        parser.exit(2, "expected_time: the plan has several processes but not what they send; expected the line of this version's train_gpt2 --plan\n")
    gpu = options.gpu or device[2]
    rate = peak(gpu, device[1])
    source = f"an estimate, not measured: {100 * SHARE:.0f} % of {gpu}'s {rate / 1e12:.0f} TFLOP/s"
    speed = options.tokens_per_second or SHARE * rate / work
    if speed == 0:
        parser.exit(3, f"expected_time: {RATES.name} has no rate of {gpu} in {device[1]}; give the speed of one GPU by --tokens-per-second\n")
    print(time_line(plan, speed, "as given" if options.tokens_per_second else source))
    if (options.link or options.network) and "processes sends" in plan:
        machines = Machines(options.link or LINKS["nvlink3"], options.network or LINKS["hdr8"], math.ceil(options.gpus_per_machine))
        print(communication_line(plan, speed, machines))


if __name__ == "__main__":
    main()
