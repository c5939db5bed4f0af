#!/usr/bin/env python3
"""Writes the tables of measured speed in README.md and docs/performance.md from dev/bench/results/*.json.

    dev/bench/tables.py            # rewrites the text between <!-- table: NAME --> and <!-- end -->
    dev/bench/tables.py --check    # changes nothing; exits with 1 if a table differs, naming page and table

A table shows the newest result of each benchmark and machine. A result of another commit than the
newest of all is marked as older, with the change since then if the file has one ("before").
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/performance.md")
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)
MODELS = {"training-shakespeare": "4 layers, C 128, bytes, 12 x 64", "training-d12": "GPT-2 124M, 4 x 64"}


class Results:
    """The newest result of each benchmark on each machine."""

    def __init__(self, folder):
        newest = {}
        for path in sorted(folder.glob("*.json")):
            try:
                result = json.loads(path.read_text())
                if isinstance(result, dict) and "what" in result:  # others are reports of a GPU
                    key = result["what"], result["machine"]["name"]
                    if key not in newest or newest[key]["date"] <= result["date"]:
                        newest[key] = result
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                sys.exit(f"tables: {path}: is no result of a benchmark: {type(error).__name__}: {error}")
        self.all = sorted(newest.values(), key=lambda result: result["date"], reverse=True)

    def of(self, what):
        """The results of one benchmark, the newest first."""
        found = [result for result in self.all if result["what"] == what]
        if not found:
            sys.exit(f"tables: there is no result for {what}")
        return found

    def older(self, result):
        return result["commit"] != self.all[0]["commit"]


def machine(result):
    return f"{result['machine']['name']}, {result['machine']['cores']} cores"


def origin(results, result):
    """Machine, date, commit and command, as a line that ends in a colon."""
    parts = [f"{result['date'][:10]}, commit {result['commit']}"]
    parts += [f"{name} {version.split('+')[0]}" for name, version in result["versions"].items() if name != "flatgpt"]
    text = f"**{machine(result)}** ({', '.join(parts)}; `{result['command']}`)"
    if "note" in result:
        text += f"; {result['note']}"
    if results.older(result):
        text += "; **older**" + (f", before {result['before']}" if "before" in result else "")
    return text + ":\n"


def table(titles, rows):
    def line(cells):
        return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"

    return line(titles) + "|" + "---|" * len(titles) + "\n" + "".join(map(line, rows))


def ours_over_pytorch(result, dtype=None):
    """The ratio of the best times, in one dtype or over all; None if a side is missing."""
    best = {}
    for contender in result["results"].values():
        if dtype in (None, contender["dtype"]):
            side = contender["side"]
            best[side] = min(best.get(side, contender["median_ms"]), contender["median_ms"])
    return best["ours"] / best["pytorch"] if {"ours", "pytorch"} <= set(best) else None


def dtypes(result):
    return list(dict.fromkeys(contender["dtype"] for contender in result["results"].values()))


def training(results, what):
    parts = []
    for result in results.of(what):
        contenders, rows = result["results"], []
        losses = any("loss" in contender for contender in contenders.values())
        for name, contender in contenders.items():
            plain, digits = name.split(", B ")[0], 1 if contender["median_ms"] < 200 else 0
            bold = "**" if contender["side"] == "ours" else ""
            spread = f"{contender['p10_ms']:.{digits}f} to {contender['p90_ms']:.{digits}f}"
            row = [
                f"{bold}{plain}{bold}",
                f"{bold}{contender['median_ms']:.1f}{bold}",
                spread,
                str(contender["peak_mib"]),
            ]
            rows.append(row + [f"{contender['loss']:.4f}"] if losses else row)
        titles = ["", "ms a step", "10 % to 90 %", "peak MiB"] + ["loss"] * losses
        ratios = [(f"in {dtype}", ours_over_pytorch(result, dtype)) for dtype in dtypes(result)]
        ratios.append(("the best of each", ours_over_pytorch(result)))
        shares = ", ".join(f"{ratio:.2f} {name}" for name, ratio in ratios if ratio is not None)
        parts.append(f"{origin(results, result)}\n{table(titles, rows)}\nOurs / PyTorch's best: {shares}.\n")
    return "\n".join(parts)


def generate(results):
    parts = []
    for result in results.of("generate-d12"):
        rows = []
        for name, contender in result["results"].items():
            bold = "**" if name.startswith("ours") else ""
            agree = f"{contender['agree']} of {result['options']['tokens']}" if "agree" in contender else ""
            ratio = f"{contender['ratio']:.2f}" if "ratio" in contender else ""
            shown = name.replace(" int8", ", int8 weights")
            rows.append(
                [
                    f"{bold}{shown}{bold}",
                    f"{contender['tokens_per_second']:.1f}",
                    f"{contender['step_ms']:.1f}",
                    ratio,
                    agree,
                ]
            )
        titles = ["", "tokens/s", "ms a step", "ratio to transformers in the same type", "tokens agree"]
        parts.append(f"{origin(results, result)}\n{table(titles, rows)}")
    return "\n".join(parts)


def processes(results):
    rows = []
    both = results.of("processes-d12-fp32") + results.of("processes-d12-bf16")
    for result in sorted(both, key=results.all.index):
        ratios = {
            name.rsplit("--zero ")[-1]: contender["ratio"] for name, contender in result["results"].items()
        }
        older = ", older" if results.older(result) else ""
        where = f"{machine(result)}, {result['date'][:10]}, {result['commit']}{older}"
        rows.append([where, result["options"]["dtype"], f"{ratios['0']:.2f}", f"{ratios['1']:.2f}"])
    return table(["tokens/s of 2 processes / of 1", "dtype", "`--zero 0`", "`--zero 1`"], rows)


def gib(sizes):
    return f"{min(sizes) / 1024:.1f} to {max(sizes) / 1024:.1f}"


def speed(results):
    """The table of README.md: our time over PyTorch's best, one column per machine."""
    columns = {}
    for what in MODELS:
        for result in results.of(what):
            columns.setdefault(result["machine"]["name"], {})[what] = result
    rows = []
    for what, model in MODELS.items():
        for title, dtype in (("fp32", "fp32"), ("bf16", "bf16"), ("the best of each", None)):
            ratios = [
                ours_over_pytorch(column[what], dtype) if what in column else None
                for column in columns.values()
            ]
            rows.append(
                [
                    model if dtype == "fp32" else "",
                    title,
                    *(f"{r:.2f}" if r is not None else "" for r in ratios),
                ]
            )

    def commits(column):
        found = dict.fromkeys(r["commit"] + (", older" if results.older(r) else "") for r in column.values())
        return "; ".join(found)

    rows.append(["measured at commit", "", *map(commits, columns.values())])
    text = table(["model, batch", "dtype", *columns], rows)
    peaks = {"ours": [], "pytorch": []}
    for result in results.of("training-d12"):
        for contender in result["results"].values():
            peaks[contender["side"]].append(contender["peak_mib"])
    text += f"\nGPT-2 124M takes {gib(peaks['ours'])} GiB where PyTorch takes {gib(peaks['pytorch'])}.\n"
    newest = results.of("generate-d12")[0]
    rate = {name: contender["tokens_per_second"] for name, contender in newest["results"].items()}
    theirs = max(value for name, value in rate.items() if name.startswith("transformers"))
    int8 = max(rate["ours fp32 int8"], rate["ours bf16 int8"])
    return (
        f"{text}`generate_gpt2` makes {rate['ours fp32']:.0f} tokens/s with this model in fp32, "
        f"{rate['ours bf16']:.0f} in bf16 and {int8:.0f} "
        f"with int8 weights, where `transformers` makes {theirs:.0f} ({machine(newest)}, commit {newest['commit']}).\n"
    )


TABLES = {"speed": speed, "generate": generate, "processes": processes}
TABLES |= {what: lambda results, what=what: training(results, what) for what in MODELS}


def rewritten(text, results, page):
    """The page with regenerated tables, and the names of those that differ."""
    changed = []

    def made(match):
        begin, name, old, end = match.groups()
        if name not in TABLES:
            sys.exit(f"tables: {page}: there is no table {name}; expected one of {', '.join(TABLES)}")
        new = f"\n{TABLES[name](results)}\n"
        if new != old:
            changed.append(name)
        return begin + new + end

    return BLOCK.sub(made, text), changed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"tables: {message}; --help shows the usage\n")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; 1 if a table differs from the results"
    )
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the tree (default: this one)")
    arguments = parser.parse_args()
    results, differ = Results(arguments.root / "dev" / "bench" / "results"), False
    for page in PAGES:
        path = arguments.root / page
        text = path.read_text()
        new, changed = rewritten(text, results, page)
        if text.count("<!-- table:") != len(BLOCK.findall(text)):
            sys.exit(f"tables: {page}: a <!-- table: NAME --> has no <!-- end -->")
        if arguments.check:
            for name in changed:
                print(
                    f"tables: {page}: table {name} differs from dev/bench/results; run: dev/bench/tables.py",
                    file=sys.stderr,
                )
            differ |= bool(changed)
        elif changed:
            path.write_text(new)
            print(f"{page}: {', '.join(changed)}")
    return 1 if differ else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"tables: {error}")
