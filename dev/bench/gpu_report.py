"""The report of gpu_check.py: each target with its finding and verdict, and tables."""

import math
import re
import statistics

# Steps, tokens of a step, and the permitted difference of losses from PyTorch's: in the mean, and at most.
# The maximum is set by the steep first steps, where rounding moves a loss most. The mean may be a quarter of
# it: rounding errs both ways and fades, but a wrong learning rate, decay or clipping moves all later steps
# slightly in one direction.
CURVES = {"bf16": (60, 524288, 0.005, 0.02), "fp32": (200, 768, 2.5e-4, 1e-3)}
CURVES["nanochat"] = CURVES["bf16"]  # not yet measured: how far PyTorch's own runs differ
# A kernel that seems to be faster than a copy by a quarter has not done its work.
BANDWIDTH_SHARE, IMPOSSIBLE_SHARE, ATTENTION_SHARE = 0.85, 1.25, 0.5
MODELS = ("124M", "nanochat", "1558M")
# The targets are those of one H200; other GPUs have other speeds.
JUDGED_GPU, TOKENS_PER_SECOND = "H200", {"124M": 560e3, "1558M": 55e3}
OVER_PYTORCH = {"124M": 1.25, "nanochat": 1.2}


def summarize(report):
    """Derives training, kernels, ladder and criteria from the findings of the jobs."""
    report["training"] = [row for model in MODELS for row in fastest(report, model)]
    report["kernels"] = [row for unit in units(report, "kernels").values() for row in unit.get("rows", [])]
    report["ladder"] = units(report, "ladder").get("rows", {}).get("rows", [])
    rehearsal = report["device"] != "cuda"
    if rehearsal:  # no peak of a GPU was measured
        report["kernels"] = [row | dict(share_of_peak=None) for row in report["kernels"]]
    report["criteria"] = [
        dict(criterion=criterion, found=text, met=None if rehearsal else met)
        for judge in (judge_speed, judge_tests, judge_curves, judge_kernels)
        for criterion, text, met in judge(report)
    ]


def units(report, part, status=("passed", "failed")):
    return {name: unit for name, unit in report["parts"][part]["units"].items() if unit["status"] in status}


def fastest(report, model):
    """The fastest micro-batch of each side: the median over the steps of all its slices."""
    by_size, best = {}, {}
    for unit in units(report, f"speed-{model}", ["passed"]).values():
        by_size.setdefault((unit["side"], unit["batch_size"]), []).append(unit)
    for (side, size), slices in by_size.items():
        ms = statistics.median(ms for unit in slices for ms in unit["ms"])
        if side not in best or ms < best[side][0]:
            best[side] = ms, size, slices
    for side, (ms, size, slices) in sorted(best.items()):
        tokens, peak = slices[0]["total_batch"], max(unit["peak_bytes"] or 0 for unit in slices)
        yield dict(
            model=model if report["device"] == "cuda" else f"tiny, for {model}",
            side=side,
            tokens_per_second=1e3 * tokens / ms,
            tokens_a_step=tokens,
            batch_size=size,
            slices=len(slices),
            peak_gib=peak / 2**30 or None,
            time_over_ours=ms / best["ours"][0] if "ours" in best else None,
        )


# Each criterion is (what is promised, what was found, whether it is met: None without a verdict).


def judge_speed(report):
    rates = {(row["model"], row["side"]): row["tokens_per_second"] for row in report["training"]}
    ratios = {(row["model"], row["side"]): row["time_over_ours"] for row in report["training"]}
    targets = [(model, f"{least:,.0f} tokens/s", rates.get((model, "ours")), least, "{:,.0f} tokens/s")
               for model, least in TOKENS_PER_SECOND.items()]  # fmt: skip
    for model, least in OVER_PYTORCH.items():
        target = f"{least} x PyTorch with torch.compile"
        targets.append((model, target, ratios.get((model, "pytorch")), least, "{:.3f} x"))
    for model, target, value, least, form in sorted(targets, key=lambda row: MODELS.index(row[0])):
        text, met = form.format(value) if value else "", value >= least if value else None
        if JUDGED_GPU not in report["gpu"]:
            text += f" (not judged: the target is an {JUDGED_GPU}'s, and this is {report['gpu']})"
            met = None
        yield f"{model}: {target}", text.strip(), met


def judge_tests(report):
    for criterion, names in (
        ("every test passes", ("tests", "long-tests")),
        ("compute-sanitizer finds nothing", ("sanitizer",)),
        ("--deterministic: two runs have the same bits", ("deterministic",)),
    ):
        statuses = [unit["status"] for name in names for unit in units(report, name).values()]
        text = f"{statuses.count('passed')} of {len(statuses)} passed" if statuses else ""
        complete = all(report["parts"][name]["status"] == "passed" for name in names)
        yield criterion, text, False if "failed" in statuses else complete or None


def judge_curves(report):
    for name, (steps, tokens, mean, largest) in CURVES.items():
        criterion = f"{name} losses of {steps} steps at {tokens:,} tokens within {mean} (mean) and "
        criterion += f"{largest} (largest) of PyTorch's"
        sides = {unit["side"]: unit for unit in units(report, f"curve-{name}", ["passed"]).values()}
        if len(sides) < 2:
            yield criterion, "", None
            continue
        pairs = zip(sides["ours"]["losses"], sides["pytorch"]["losses"])
        apart = [math.inf if None in pair else abs(pair[0] - pair[1]) for pair in pairs]
        step, met = apart.index(max(apart)) + 1, statistics.fmean(apart) <= mean and max(apart) <= largest
        text = f"mean {statistics.fmean(apart):.6f}, largest {max(apart):.6f} at step {step} of {len(apart)}"
        complete = (len(apart), sides["ours"]["total_batch"]) == (steps, tokens)
        yield criterion, text, met if complete else None  # a shorter run proves nothing


def memory_bound(report):
    """The rows of the operations that memory bounds. Drawing a token is bound by conversions of its weights."""
    rows = [row for row in report["kernels"] if row["bound"] == "memory" and row["share_of_peak"] is not None]
    return [row for row in rows if row["name"] != "decode_sample"]


def judge_kernels(report):
    rows = memory_bound(report)
    slow = [row for row in rows if row["share_of_peak"] < BANDWIDTH_SHARE]
    idle = [row for row in rows if row["share_of_peak"] > IMPOSSIBLE_SHARE]
    text = "; ".join(f"{word}: " + ", ".join(f"{row['name']} {row['share_of_peak']:.0%}" for row in those)
                     for word, those in (("below", slow), ("impossible", idle)) if those)  # fmt: skip
    text = text or (f"all {len(rows)}" if rows else "")
    complete = report["parts"]["kernels"]["status"] == "passed" and bool(rows)
    criterion = f"kernels bound by memory reach {BANDWIDTH_SHARE:.0%} of a copy's bandwidth"
    yield criterion, text, False if slow or idle else complete or None
    ms = {(row["name"], row["shape"]): row["ms"] for row in report["kernels"]}
    shares = {}
    for name, shape in ms:
        cudnn = ms.get((name.replace("_kernel", "_cudnn"), shape))
        if re.match("attention_.*_kernel", name) and cudnn:
            shares[name.split("_")[1], shape] = cudnn / ms[name, shape]
    text = ", ".join(f"{way} {share:.0%}" for (way, _), share in shares.items())
    met = min(shares.values()) >= ATTENTION_SHARE if shares else None
    yield f"our own attention reaches {ATTENTION_SHARE:.0%} of cuDNN's speed", text, met


def verdict(criterion):
    return {None: "not judged", True: "met", False: "NOT met"}[criterion["met"]]


def markdown(report):
    """The report as tables: verdicts, speeds, losses, operations, and the jobs that failed or did not run."""
    title, note = f"# flatgpt on {report['gpu']}, {report['date']}", ""
    if report["device"] != "cuda":
        title = f"# A rehearsal of flatgpt's check on the {report['gpu']}, {report['date']}"
        note = " (a rehearsal: no GPU's figures)"
    lines = [title]
    if report["stopped"]:
        lines += ["", f"Stopped by {report['stopped']}: what follows is what was found out by then."]
    lines += table("Criteria", [row | dict(met=verdict(row)) for row in report["criteria"]])
    lines += table(f"Training in bf16, in turns{note}", report["training"])
    for curve in CURVES:
        sides = {name: unit["losses"] for name, unit in units(report, f"curve-{curve}", ["passed"]).items()}
        rows = [dict(zip(sides, losses), step=step) for step, losses in enumerate(zip(*sides.values()), 1)]
        lines += table(f"Losses, {curve}, every tenth step{note}", rows[::10])
    lines += table(f"What made a step faster{note}", report["ladder"])
    lines += table(f"Operations{note}", report["kernels"])
    rows = []
    for name, part in report["parts"].items():
        seconds = sum(unit["seconds"] for unit in part["units"].values())
        rows.append((f"**{name}**: {part['title']}", part["status"], seconds, part["reason"]))
        failed = units(report, name, ["failed"])
        rows += [(f"{name}/{job}", "failed", unit["seconds"], unit["reason"]) for job, unit in failed.items()]
        rows += [(f"{name}/{job}", "missing", None, why) for job, why in part["missing"].items()]
    rows = [dict(zip(("job", "status", "seconds", "why"), row)) for row in rows]
    lines += table("Parts, and the jobs that failed or are missing", rows)
    lines += table("Machines", report["machines"])
    return "\n".join(lines) + "\n"


def table(title, rows):
    """Rows of equal keys, which become the titles of the columns."""
    if not rows:
        return []
    columns = [key.replace("_", " ") for key in rows[0]]
    lines = [columns, ["---"] * len(columns), *(row.values() for row in rows)]
    return ["", f"## {title}", "", *("| " + " | ".join(map(cell, line)) + " |" for line in lines)]


def cell(value):
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"
    return "" if value is None else str(value).replace("|", "/")
