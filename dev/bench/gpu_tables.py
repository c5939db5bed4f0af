"""What docs/performance.md and README.md show of a GPU, from a report of gpu_check. To the report that is kept were
added by hand: "first_visit", the speeds on another card; "runs", the profiles of single runs; "generation"."""

from gpu_report import BANDWIDTH_SHARE, memory_bound

MODELS = {
    "124M Muon": "GPT-2 124M, Muon",
    "llama:d12": "Llama, 12 layers, C 768",
    "1558M": "GPT-2 1558M, 131,072 tokens a step",
}
OPTIONS = {
    "--dtype bf16": "bf16",
    "--dtype bf16 --top-k 40": "bf16, drawn from the 40 likeliest",
    "--dtype fp32": "fp32",
    "--quantize int8 --dtype bf16": "int8 weights",
    "--dtype bf16 --samples 16": "bf16, 16 texts at once",
}


# Each function returns the titles of the columns and the rows.


def training(report):
    """Tokens a second of every model, and beside PyTorch's where both were measured on one card."""
    rows = []
    for where, measured in (("first card", report["first_visit"]), ("second card", report)):
        sides = {row["side"]: row for row in measured["training"] if row["model"] == "124M"}
        ours, theirs = sides["ours"]["tokens_per_second"], sides["pytorch"]["tokens_per_second"]
        rows.append([f"GPT-2 124M, {where}", f"**{ours:,.0f}**", f"{theirs:,.0f}", f"{ours / theirs:.3f}"])
    for name, run in report["runs"].items():
        if title := MODELS.get(name.split(",")[0]):
            rows.append([f"{title}, first card", f"**{run['tokens_per_second']:,}**", "", ""])
    return [f"bf16, {report['gpu']}, tokens/s", "flatgpt", "PyTorch, torch.compile", "ratio"], rows


def sentence(report):
    """Training beside PyTorch, for README.md."""
    rates, ratios = [], []
    for measured in (report["first_visit"], report):
        sides = {row["side"]: row for row in measured["training"] if row["model"] == "124M"}
        ours, theirs = sides["ours"]["tokens_per_second"], sides["pytorch"]["tokens_per_second"]
        rates.append(f"{ours:,.0f}")
        ratios.append(f"{ours / theirs:.3f}")
    return (
        f"GPT-2 124M trains in bf16, with sequences of 1024 tokens, at {rates[0]} tokens/s on the first and {rates[1]} on the second,\n"
        f"{' and '.join(ratios)} times as fast as PyTorch with torch.compile on the same card.\n"
    )


def step(report):
    """Where a micro-step's time goes."""
    profile = report["runs"]["124M"]["profile"]
    whole = next(row["ms"] for row in profile if row["operation"] == "step")
    rows = [
        [row["operation"], f"{row['ms'] / 8:.2f}", f"{row['ms'] / whole:.1%}"]
        for row in profile
        if row["ms"] >= 1 and row["operation"] not in ("all operations", "step")
    ]
    rows.append(["**micro-step**", f"**{whole / 8:.1f}**", ""])
    return [f"GPT-2 124M, 64 x 1024 tokens, {report['gpu']}", "ms", "of the step"], rows


def generation(report):
    by_commit = report["generation"]
    rows = [
        [title, *(f"{rates[how]:,.0f}" if how in rates else "" for rates in by_commit.values())]
        for how, title in OPTIONS.items()
    ]
    commits = [f"commit {commit}" for commit in by_commit]
    return [f"new tokens/s, GPT-2 124M, {report['gpu']}", *commits], rows


def kernels(report):
    """The operations that memory bounds, with their share of a copy's bandwidth."""
    found = sorted(
        (row["share_of_peak"], row["name"].replace("_", " "), row["ms"]) for row in memory_bound(report)
    )
    rows = [[name, f"{ms:.3f}", f"{share:.0%}"] for share, name, ms in reversed(found)]
    enough = sum(share >= BANDWIDTH_SHARE for share, *_ in found)
    share = f"of a copy's bandwidth; {enough} of {len(found)} reach {BANDWIDTH_SHARE:.0%}"
    return [f"65,536 rows, bf16, {report['gpu']}", "ms", share], rows


# Each table, and what a report must have for it.
TABLES = {
    "gpu-training": (training, ("first_visit", "runs")),
    "gpu-step": (step, ("runs",)),
    "gpu-generation": (generation, ("generation",)),
    "gpu-kernels": (kernels, ("kernels",)),
}
SENTENCES = {"gpu-sentence": (sentence, ("first_visit",))}


def newest(reports, name):
    """The newest report of a GPU, with its path, that has what the table shows; reports: {path: report}."""
    needed = (TABLES | SENTENCES)[name][1]
    found = [path for path, report in reports.items() if all(report.get(key) for key in needed)]
    found = [path for path in found if reports[path]["device"] == "cuda"]
    path = max(found, key=lambda path: reports[path]["date"], default=None)
    return path, reports.get(path)
