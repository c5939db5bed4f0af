"""The report of gpu_check.py: each target with its finding and verdict, tables, a plot."""

import math
import statistics

# Steps, tokens of a step, and the permitted difference of the losses from PyTorch's: in the mean, and at most.
# The maximum is set by the steep first steps, where rounding moves a loss most. The mean may be a quarter of it:
# rounding errs both ways and fades, but a wrong learning rate, decay or clipping moves all later steps slightly
# in one direction.
CURVES = {"bf16": (60, 524288, 0.005, 0.02), "fp32": (200, 768, 2.5e-4, 1e-3)}
BANDWIDTH_SHARE, ATTENTION_SHARE = 0.85, 0.5
# Reports of these devices judge no criterion.
REHEARSALS = {"software": "the software GPU", "cpu": "the CPU's programs"}
# The targets are those of one H200; other GPUs have other speeds.
JUDGED_GPU, TOKENS_PER_SECOND, OVER_PYTORCH = "H200", {"124M": 560e3, "1558M": 55e3}, 1.25


def derive(report):
    """Derives training, curves, kernels, deterministic and criteria from the units' findings."""
    parts = report["parts"]
    report["training"] = [entry for model in TOKENS_PER_SECOND if (entry := training(report, model))]
    report["curves"] = {
        dtype: curve for dtype in CURVES if (curve := compared_losses(found(report, f"curve-{dtype}")))
    }
    report["kernels"] = [row for unit in units(report, "kernels").values() for row in unit.get("rows", [])]
    runs = list(found(report, "deterministic").values())
    report["deterministic"] = None
    if len(runs) == 2:
        (a, b), (x, y) = ([run[key] for run in runs] for key in ("steps", "files"))
        first = next((step for step, pair in enumerate(zip(a, b), 1) if pair[0] != pair[1]), None)
        report["deterministic"] = dict(identical=(a, x) == (b, y), first_different_step=first)
    report["criteria"] = criteria(report) if parts else []


def units(report, part):
    return report["parts"].get(part, {}).get("units", {})


def found(report, part):
    """The units of a part that passed."""
    return {name: unit for name, unit in units(report, part).items() if unit["status"] == "passed"}


def training(report, model):
    """Each side's fastest micro-batch; the median over the steps of all its slices."""
    sides = {}
    for unit in found(report, f"speed-{model}").values():
        sides.setdefault(unit["side"], {}).setdefault(unit["batch_size"], []).append(unit)
    if not sides:
        return None
    rehearsed = report["device"] in REHEARSALS  # rehearsals train no such model, so no speed is shown
    entry = dict(model=f"tiny (for {model})" if rehearsed else model, dtype="bf16")
    for side, prefix in (("ours", ""), ("pytorch", "pytorch_"), ("llmc", "llmc_")):
        timed = {
            size: statistics.median(ms for unit in slices for ms in unit["ms"])
            for size, slices in sides.get(side, {}).items()
        }
        size = min(timed, key=timed.get, default=None)
        slices = sides[side][size] if timed else []
        peaks = [unit["peak_bytes"] for unit in slices if unit["peak_bytes"]]
        entry |= {
            f"{prefix}batch_size": size,
            f"{prefix}tokens_per_second": slices[0]["total_batch"] / timed[size] * 1e3 if timed else None,
            f"{prefix}peak_memory_bytes": max(peaks, default=None),
            f"{prefix}slices": len(slices),
        }
        if slices:
            entry |= {key: slices[0][key] for key in ("seq_len", "total_batch")}
    return entry


def compared_losses(units):
    """Losses of both sides from the same weights on the same tokens, and their differences."""
    sides = {unit["side"]: unit for unit in units.values()}
    if set(sides) != {"ours", "pytorch"}:
        return None
    losses = {side: sides[side]["losses"] for side in sides}
    differences = [
        math.inf if None in pair else abs(pair[0] - pair[1])
        for pair in zip(losses["ours"], losses["pytorch"])
    ]
    largest = max(differences)
    return losses | dict(
        tokens_a_step=sides["ours"]["total_batch"],
        mean_difference=statistics.fmean(differences),
        largest_difference=largest,
        at_step=differences.index(largest) + 1,
    )


def criteria(report):
    """[{criterion, found, met}]; met is None where there is no finding yet, or no verdict."""
    judged = []

    def judge(criterion, text, met):
        if report["device"] in REHEARSALS:
            met = None
        judged.append(dict(criterion=criterion, found=text, met=met))

    speeds = {entry["model"]: entry for entry in report["training"]}
    on_h200 = JUDGED_GPU in (report["gpu"] or "")
    elsewhere = (
        ""
        if on_h200
        else f"not judged: the target is an {JUDGED_GPU}'s, and this is {report['gpu'] or 'unknown'}"
    )

    def judge_speed(criterion, value, form, least):
        text = "; ".join(part for part in (form.format(value) if value else "", elsewhere) if part)
        judge(criterion, text, value >= least if value and on_h200 else None)

    def speed(model, key="tokens_per_second"):
        return speeds.get(model, {}).get(key)

    rate, theirs = speed("124M"), speed("124M", "pytorch_tokens_per_second")
    judge_speed(
        f"124M: {TOKENS_PER_SECOND['124M']:,.0f} tokens/s",
        rate,
        "{:,.0f} tokens/s",
        TOKENS_PER_SECOND["124M"],
    )
    judge_speed(
        f"124M: {OVER_PYTORCH} x PyTorch with torch.compile",
        rate and theirs and rate / theirs,
        "{:.3f} x",
        OVER_PYTORCH,
    )
    judge_speed(
        f"1558M: {TOKENS_PER_SECOND['1558M']:,.0f} tokens/s",
        speed("1558M"),
        "{:,.0f} tokens/s",
        TOKENS_PER_SECOND["1558M"],
    )

    for criterion, good, names in (
        ("every test passes", "passed", ("tests", "long-tests")),
        ("compute-sanitizer finds nothing", "clean", ("sanitizer",)),
    ):
        run = [unit for name in names for unit in units(report, name).values() if not unit.get("optional")]
        passed, failed = (sum(unit["status"] == status for unit in run) for status in ("passed", "failed"))
        whole = all(report["parts"].get(name, {}).get("status") == "passed" for name in names)
        judge(criterion, f"{passed} of {len(run)} {good}" if run else "", False if failed else whole or None)
    same = report["deterministic"]
    judge(
        "--deterministic: two runs have the same bits",
        "" if same is None else "the same" if same["identical"] else "not the same",
        same and same["identical"],
    )
    for dtype, (steps, tokens, mean, largest) in CURVES.items():
        curve = report["curves"].get(dtype)
        complete = curve and (len(curve["ours"]), len(curve["pytorch"]), curve["tokens_a_step"]) == (
            steps,
            steps,
            tokens,
        )
        judge(
            f"{dtype} losses of {steps} steps at {tokens:,} tokens within {mean} (mean) and {largest} "
            "(largest) of PyTorch's",
            described(curve) if curve else "",
            losses_agree(curve, dtype) if complete else None,
        )
    memory = [
        kernel
        for kernel in report["kernels"]
        if kernel["bound"] == "memory" and kernel["share_of_peak"] is not None
    ]
    slow = sorted(
        (kernel["share_of_peak"], kernel["name"])
        for kernel in memory
        if kernel["share_of_peak"] < BANDWIDTH_SHARE
    )
    judge(
        f"kernels bound by memory reach {BANDWIDTH_SHARE:.0%} of a copy's bandwidth",
        (
            "below: " + ", ".join(f"{name} {share:.0%}" for share, name in slow)
            if slow
            else f"all {len(memory)}" if memory else ""
        ),
        (
            False
            if slow
            else report["parts"].get("kernels", {}).get("status") == "passed" and bool(memory) or None
        ),
    )
    ms = {(kernel["name"], kernel["shape"]): kernel["ms"] for kernel in report["kernels"]}
    pairs = {
        (name, shape): (name.replace("_kernel", "_cudnn"), shape)
        for name, shape in ms
        if name.startswith("attention_") and name.endswith("_kernel")
    }
    shares = {own: ms[theirs] / ms[own] for own, theirs in pairs.items() if theirs in ms}
    judge(
        f"our own attention reaches {ATTENTION_SHARE:.0%} of cuDNN's speed",
        ", ".join(f"{name.split('_')[1]} {share:.0%}" for (name, _), share in shares.items()),
        all(share >= ATTENTION_SHARE for share in shares.values()) if shares else None,
    )
    return judged


def losses_agree(curve, dtype):
    _, _, mean, largest = CURVES[dtype]
    return curve["mean_difference"] <= mean and curve["largest_difference"] <= largest


def described(curve):
    return (
        f"mean {curve['mean_difference']:.6f}, largest {curve['largest_difference']:.6f} at step "
        f"{curve['at_step']} of {len(curve['ours'])}, "
        f"{curve['tokens_a_step']:,} tokens each"
    )


def number(value, form=",.0f", scale=1):
    return "" if value is None else f"{value * scale:{form}}"


def tables_of(report):
    """table(), which in a rehearsal states above each table that its figures are not a GPU's."""
    if report["device"] not in REHEARSALS:
        return table
    return lambda title, columns, rows: table(f"{title} (a rehearsal: no GPU's figures)", columns, rows)


def table(title, columns, rows):
    cells = ["| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |" for row in rows]
    return (
        ["", f"## {title}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *cells]
        if cells
        else []
    )


def markdown(report):
    lines = [f"# flatgpt on {report['gpu'] or 'an unknown GPU'}, {report['date']}", ""]
    measured = tables_of(report)
    if report["device"] in REHEARSALS:
        lines[0] = f"# A rehearsal of flatgpt's check with {REHEARSALS[report['device']]}, {report['date']}"
        lines += [
            "No GPU was there, and the sizes are tiny: this shows that the check runs, and measures nothing.",
            "",
        ]
    for machine in report["machines"]:
        lines += [
            "; ".join(
                f"{key.replace('_', ' ')} {value}" for key, value in machine.items() if value is not None
            ),
            "",
        ]
    if report["stopped"]:
        lines += [f"**Stopped by {report['stopped']}**: what follows is what was found out by then.", ""]
    lines += ["| criterion | found | met |", "|---|---|---|"]
    lines += [f"| {c['criterion']} | {c['found']} | {verdict(c)} |" for c in report["criteria"]]
    lines += training_table(report["training"], measured)
    if report["curves"]:
        lines += ["", "## Losses", "", "![losses of ours and PyTorch's on the same tokens](loss.svg)"]
    lines += measured(
        "What made a step faster",
        ("", "ms", "tokens/s", "gain", ""),
        [
            (
                row["name"],
                number(row["ms"], ".1f"),
                number(row["tokens_per_second"]),
                number(row["gain"], ".2f"),
                row["note"],
            )
            for row in report["ladder"] or []
        ],
    )
    lines += measured(
        "Operations",
        ("operation", "shape", "dtype", "ms", "share of the peak"),
        [
            (
                k["name"],
                k["shape"].replace(":", " ").replace("/", ", "),
                k["dtype"],
                number(k["ms"], ".3f"),
                number(k["share_of_peak"], ".0%"),
            )
            for k in report["kernels"]
        ],
    )
    odd = [
        (name, unit_name, unit)
        for name, part in report["parts"].items()
        for unit_name, unit in part.get("units", {}).items()
        if unit["status"] != "passed"
    ]
    lines += table(
        "What failed, was stopped or left out",
        ("part", "", "status", "why"),
        [
            (
                part,
                name,
                unit["status"],
                "; ".join(filter(None, [unit.get("reason"), ", ".join(unit.get("failed", []))])),
            )
            for part, name, unit in odd
        ],
    )
    lines += table(
        "Parts",
        ("part", "status", "seconds", ""),
        [
            (part["title"], part["status"], number(part.get("seconds"), ".0f"), part.get("reason", ""))
            for part in report["parts"].values()
        ],
    )
    return "\n".join(lines) + "\n"


def verdict(criterion):
    return "not judged" if criterion["met"] is None else "yes" if criterion["met"] else "**no**"


def training_table(entries, measured):
    rows = []
    for t in entries:
        ratios = [
            t["tokens_per_second"] / t[key] if t["tokens_per_second"] and t[key] else None
            for key in ("pytorch_tokens_per_second", "llmc_tokens_per_second")
        ]
        rows.append(
            (
                f"GPT-2 {t['model']} {t['dtype']}",
                number(t["total_batch"]),
                number(t["tokens_per_second"]),
                number(t["batch_size"]),
                number(t["peak_memory_bytes"], ".1f", 2**-30),
                number(t["pytorch_tokens_per_second"]),
                number(t["pytorch_batch_size"]),
                number(t["pytorch_peak_memory_bytes"], ".1f", 2**-30),
                number(ratios[0], ".3f"),
                number(t["llmc_tokens_per_second"]),
                number(ratios[1], ".3f"),
            )
        )
    title = "Training: tokens per second, in turns; B the micro-batch, GiB of the GPU's memory"
    return measured(
        title,
        (
            "model",
            "tokens a step",
            "ours",
            "B",
            "GiB",
            "PyTorch",
            "B",
            "GiB",
            "ours / PyTorch",
            "llm.c",
            "ours / llm.c",
        ),
        rows,
    )


def loss_plot(curves):
    """Both curves of every dtype as SVG, written without any package."""
    width, height, left, right, top, bottom = 640, 300, 60, 620, 30, 260
    panels = []
    for index, (dtype, curve) in enumerate(sorted(curves.items())):
        values = [value for side in ("ours", "pytorch") for value in curve[side] if value is not None]
        low, high, steps = min(values, default=0), max(values, default=1), len(curve["ours"])

        def point(step, value, low=low, high=high, steps=steps):
            return left + (right - left) * step / max(1, steps - 1), top + (bottom - top) * (high - value) / (
                (high - low) or 1
            )

        panels.append(f'<g transform="translate(0 {index * height})">')
        panels.append(
            f'<text x="{left}" y="18">{dtype}: loss, {curve["tokens_a_step"]:,} tokens a step</text>'
        )
        for value in (low + (high - low) * k / 4 for k in range(5)):
            y = point(0, value)[1]
            panels.append(
                f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/>'
                f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>'
            )
        for side, style in (
            ("pytorch", 'stroke="#c8553d" stroke-width="3" opacity="0.6"'),
            ("ours", 'stroke="#1f5fa8"'),
        ):
            known = (point(step, value) for step, value in enumerate(curve[side]) if value is not None)
            points = " ".join("{:.1f},{:.1f}".format(*xy) for xy in known)
            panels.append(f'<polyline points="{points}" fill="none" {style}/>')
        legend = '<tspan fill="#1f5fa8">ours</tspan> <tspan fill="#c8553d">PyTorch</tspan>'
        panels.append(f'<text x="{left}" y="{bottom + 20}">{legend}, steps 1 to {steps}</text></g>')
    if not panels:
        return ""
    size = f'width="{width}" height="{height * len(curves)}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([svg, f'<rect {size} fill="white"/>', *panels, "</svg>\n"])
