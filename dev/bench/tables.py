#!/usr/bin/env python3
"""Writes what README.md and docs/performance.md show of dev/bench/results/*.json and of the sources.

    dev/bench/tables.py            # rewrites the text between <!-- table: NAME --> and <!-- end -->
    dev/bench/tables.py --check    # changes nothing; exits with 1 and names a table or picture that differs

All tables, and docs/speed.png, show one commit on one machine: those with the most of the benchmarks in
SHOWN, the newest among equals. If a benchmark was measured twice there, the newest result counts. Other
machines and older commits stay in dev/bench/results. Only the comparison of PyTorch's environments, which
says nothing about our speed, may come from another commit. The lines of code in README.md are quoted from
the sources, between the lines that QUOTED names.
"""

import argparse
import json
import pathlib
import re
import struct
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpu_tables  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/performance.md")
PICTURE = "docs/speed.png"
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)
MODELS = {
    "training-shakespeare": "4 layers, C 128, bytes, 12 x 64",
    "training-d12": "GPT-2 124M, 4 x 64",
    "training-d12-1024": "GPT-2 124M, 1 x 1024",
}
GENERATION, PROCESSES, VARIABLES = (
    "generation-d12",
    ("processes-d12-fp32", "processes-d12-bf16"),
    "variables-d12",
)
SHOWN = (*MODELS, GENERATION, *PROCESSES)
PICTURED = "training-d12"  # the one that llm.c's program for CPUs can train, too
# For each quotation: the file, and what its first and its last line contain.
BLOCK_OF_GPT2 = "trainer/models/gpt2/gpt2.cuh"
QUOTED = {
    "forward": (BLOCK_OF_GPT2, "if (again) norm(a.ln1", "is_last(l) ? p_.lnf : layer(l + 1).ln1);"),
    "backward": (BLOCK_OF_GPT2, "norm_backward(dresidual, dnarrow, a.residual2", 'matmul_dinput("qkv dX"'),
}
# For each type of generation: ours, and its peers.
ALIKE = {
    "fp32": ("ours fp32", ("llama.cpp f32", "ctranslate2 float32", "transformers fp32")),
    "bf16": ("ours bf16", ("llama.cpp bf16", "transformers bf16")),
    "int8": ("ours bf16 int8", ("llama.cpp q8_0", "ctranslate2 int8")),
}
SIDES = {
    "ours": "flatgpt",
    "pytorch": "PyTorch",
    "pytorch_onednn": "PyTorch with oneDNN's products",
    "llmc": "llm.c",
}


class Results:
    """The results of the chosen machine and commit, and the newest of every benchmark."""

    def __init__(self, folder):
        self.root = folder.parents[2]
        places, self.newest, self.gpus = {}, {}, {}
        for path in sorted(folder.glob("*.json")):
            try:
                result = json.loads(path.read_text())
                if isinstance(result, dict) and "gpu" in result:
                    self.gpus[path] = result | dict(device=result["device"], date=result["date"])
                if isinstance(result, dict) and "what" in result:
                    place = result["machine"]["name"], result["machine"]["cores"], result["commit"]
                    for found in (places.setdefault(place, {}), self.newest):
                        if result["what"] not in found or found[result["what"]]["date"] <= result["date"]:
                            found[result["what"]] = result
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                sys.exit(f"tables: {path}: is no result of a benchmark: {type(error).__name__}: {error}")

        def rank(found):
            shown = [result for what, result in found.items() if what in SHOWN]
            return len(shown), max((result["date"] for result in shown), default="")

        self.chosen = max(places.values(), key=rank, default={})
        if not rank(self.chosen)[0]:
            sys.exit(f"tables: {folder} has no result of {', '.join(SHOWN)}")
        shown = [result for what, result in self.chosen.items() if what in SHOWN]
        self.last = max(shown, key=lambda result: result["date"])

    def of(self, what):
        """The chosen machine's and commit's result of a benchmark, or None."""
        return self.chosen.get(what)

    def place(self):
        return f"{machine(self.last)}, commit {self.last['commit']}, {self.last['date'][:10]}"

    def missing(self):
        return f"Not measured on {self.place()}.\n"


def machine(result):
    return f"{result['machine']['name']}, {result['machine']['cores']} cores"


def peers_environment(result):
    """One sentence for each peer that was given variables; older results say nothing, and had none."""
    sentences = []
    for peer, variables in result.get("environment", {}).items():
        settings = " ".join(f"{name}={value}" for name, value in variables.items())
        lines = "`\n`".join(re.findall(r"\S.{0,155}(?= |$)", settings))
        sentences.append(f"{peer} with `{lines}`" if settings else f"{peer} in its plain environment")
    return "; ".join(sentences) or "peers in their plain environment"


def origin(result):
    """Machine, date, commit, versions, command and the peers' environment, in lines that end in a colon."""
    text = f"**{machine(result)}** ({result['date'][:10]}, commit {result['commit']}"
    text += f"{versions([result])};\n`{result['command']}`);\n{peers_environment(result)}"
    return text + (f"; {result['note']}" if "note" in result else "") + ":\n"


def versions(found):
    """The peers' versions, on a line of their own."""
    newest = {name: text.split("+")[0] for result in found for name, text in result["versions"].items()}
    parts = [f"{name} {text}" for name, text in newest.items() if name != "flatgpt"]
    return ",\n" + ", ".join(parts) if parts else ""


def listed(names):
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def table(titles, rows):
    def line(cells):
        return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"

    return line(titles) + "|" + "---|" * len(titles) + "\n" + "".join(map(line, rows))


def aligned(text):
    """The text with the cells of its table filled up, for a terminal."""
    rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
    widths = [max(map(len, column)) for column in zip(*rows)]
    filled = iter("|".join(cell.ljust(width, cell[-1:]) for cell, width in zip(row, widths)) for row in rows)
    return "\n".join(next(filled).rstrip() if line.startswith("|") else line for line in text.splitlines())


def best_ms(result, side, dtype=None):
    """The best time of a side, in one dtype or over all; None if it has none."""
    found = [
        contender["median_ms"]
        for contender in result["results"].values()
        if contender["side"] == side and dtype in (None, contender["dtype"]) and "median_ms" in contender
    ]
    return min(found, default=None)


def ours_over(result, side, dtype=None):
    """The ratio of the best times; None if a side is missing."""
    ours, theirs = best_ms(result, "ours", dtype), best_ms(result, side, dtype)
    return ours / theirs if ours and theirs else None


def dtypes(result):
    return list(dict.fromkeys(contender["dtype"] for contender in result["results"].values()))


def shares(result, side, whole=True):
    ratios = [(f"in {dtype}", ours_over(result, side, dtype)) for dtype in dtypes(result)]
    ratios += [("the best of each", ours_over(result, side))] if whole else []
    return ", ".join(f"{ratio:.2f} {name}" for name, ratio in ratios if ratio is not None)


def training_table(result):
    """Every contender, and the ratios to PyTorch's best."""
    contenders, rows = result["results"], []
    losses = any("loss" in contender for contender in contenders.values())
    for name, contender in contenders.items():
        plain = name.split(", B ")[0]
        plain = plain.replace("fp32 oneDNN", "fp32, oneDNN's products,").removesuffix(",")
        bold = "**" if contender["side"] == "ours" else ""
        row = [f"{bold}{plain}{bold}", "", "", ""]
        if "median_ms" in contender:  # else it was only trained for its losses
            digits = 1 if contender["median_ms"] < 200 else 0
            spread = f"{contender['p10_ms']:.{digits}f} to {contender['p90_ms']:.{digits}f}"
            row[1:] = f"{bold}{contender['median_ms']:.1f}{bold}", spread, str(contender["peak_mib"] or "")
        rows.append(row + [f"{contender['loss']:.4f}" if "loss" in contender else ""] if losses else row)
    text = table(["", "ms a step", "10 % to 90 %", "peak MiB"] + ["loss"] * losses, rows) + "\n"
    if ours_over(result, "pytorch"):
        text += f"Ours / PyTorch's best: {shares(result, 'pytorch')}.\n"
    if ours_over(result, "pytorch_onednn"):
        ratios = shares(result, "pytorch_onednn", whole=False)
        text += f"Ours / PyTorch's best with oneDNN's products: {ratios}.\n"
    return text


def trained(results):
    """Every model that was trained on the chosen machine: {its name: its result}."""
    return {model: results.of(what) for what, model in MODELS.items() if results.of(what)}


def contender_name(name):
    """Without the batch, which differs from model to model."""
    return name.split(", B ")[0].replace("fp32 oneDNN", "fp32, oneDNN's products,").removesuffix(",")


def by_contender(results, cell):
    """A row for every contender, a column for every model: what cell(contender) says of it."""
    rows = {}
    for column, result in enumerate(trained(results).values(), 1):
        for name, contender in result["results"].items():
            bold = "**" if contender["side"] == "ours" else ""
            title = contender_name(name).replace("ours", SIDES["ours"])
            row = rows.setdefault(title, [f"{bold}{title}{bold}"] + [""] * len(trained(results)))
            row[column] = cell(contender, bold) if "median_ms" in contender else ""
    order = [f"{SIDES['llmc']} fp32"]  # which was not measured with every model, and stands first
    return sorted(rows.values(), key=lambda row: row[0] not in order)


def step_time(contender, bold):
    digits = 1 if contender["median_ms"] < 200 else 0
    median, low, high = (f"{contender[key]:,.{digits}f}" for key in ("median_ms", "p10_ms", "p90_ms"))
    return f"{bold}{median}{bold} ({low} to {high})"


def training(results):
    """The times of a step: a row for every contender, a column for every model, and the ratios."""
    found = trained(results)
    if not found:
        return results.missing()
    rows = by_contender(results, step_time)
    for side in ("pytorch", "pytorch_onednn"):
        for dtype in dict.fromkeys(dtype for result in found.values() for dtype in dtypes(result)):
            ratios = [ours_over(result, side, dtype) for result in found.values()]
            title = f"flatgpt / the better {SIDES[side]}, {dtype}"
            cells = [f"{ratio:.2f}" if ratio else "" for ratio in ratios]
            rows += [[title, *cells]] if any(ratios) else []
    text = table(["ms a step: median (10 % to 90 %)", *found], rows)
    return f"{origin_of_all(list(found.values()))}\n{text}"


def memory(results):
    rows = by_contender(results, lambda contender, bold: f"{bold}{contender['peak_mib'] or 0:,}{bold}")
    return table(["peak, MiB", *trained(results)], rows) if rows else results.missing()


def origin_of_all(found):
    """Machine, commit, commands and the peers' environment of several results of one place."""
    environments = {}
    for result in found:
        for peers, given in result.get("environment", {}).items():
            environments.setdefault(json.dumps(given), []).append(peers)
    peers = {max(names, key=len): json.loads(given) for given, names in environments.items()}
    commands = ",\n".join(f"`{result['command']}`" for result in found)
    place = f"**{machine(found[0])}** ({found[0]['date'][:10]}, commit {found[0]['commit']}"
    return f"{place}{versions(found)};\n{commands});\n{peers_environment(dict(environment=peers))}:\n"


def figures(contender):
    """The names of a contender's figures: prompt, new after 64, ..."""
    return [name for name, value in contender.items() if isinstance(value, dict)]


def number(rate):
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def figure_title(result, name):
    return f"prompt of {max(result['options']['prompt_tokens'])}" if name == "prompt" else name


def generate_table(result):
    """Every contender's rates, and with which options the peers were fastest."""
    contenders, rows, variants = result["results"], [], []
    names = figures(next(iter(contenders.values())))
    for name, contender in contenders.items():
        bold = "**" if contender["side"] == "ours" else ""
        cells = [
            f"{bold}{number(rate['rate'])}{bold} ({number(rate['low'])} to {number(rate['high'])})"
            for rate in (contender[figure] for figure in names)
        ]
        agree = f"{contender['agree']} of {result['options']['tokens']}" if "agree" in contender else ""
        rows.append(
            [f"{bold}{name.replace(' int8', ', int8 weights') if bold else name}{bold}", *cells, agree]
        )
        found = {}
        for figure in names:
            if "variant" in contender[figure]:
                found.setdefault(contender[figure]["variant"], []).append(figure_title(result, figure))
        best = listed([f"`{variant}` ({', '.join(titles)})" for variant, titles in found.items()])
        variants += [f"- {name} was fastest with {best}."] if found else []
    titles = [f"tokens/s: {figure_title(result, figure)}" for figure in names]
    text = table(["", *titles, "tokens agree"], rows)
    return text + ("\n" + "\n".join(variants) + "\n" if variants else "")


def generate(results):
    result = results.of(GENERATION)
    return f"{origin(result)}\n{generate_table(result)}" if result else results.missing()


def processes(results):
    rows = []
    for result in filter(None, map(results.of, PROCESSES)):
        ratios = {
            name.rsplit("--zero ")[-1]: contender["ratio"] for name, contender in result["results"].items()
        }
        where = f"{machine(result)}, {result['date'][:10]}, {result['commit']}"
        rows.append([where, result["options"]["dtype"], f"{ratios['0']:.2f}", f"{ratios['1']:.2f}"])
    titles = ["tokens/s of 2 processes / of 1", "dtype", "`--zero 0`", "`--zero 1`"]
    return table(titles, rows) if rows else results.missing()


def variables(results):
    """Which part of the environment makes PyTorch faster: the newest comparison, whatever its commit."""
    result = results.newest.get(VARIABLES)
    if not result:
        return "Not measured yet.\n"
    columns = {}  # "bf16 compiled": {"none": ms}
    for name, contender in result["results"].items():
        title = name.split(", ")[0].removeprefix("PyTorch ")
        columns.setdefault(title, {})[contender["variables"]] = contender["median_ms"]
    parts = list(dict.fromkeys(part for column in columns.values() for part in column))
    rows = [
        [part, *(f"{column[part]:.1f}" if part in column else "" for column in columns.values())]
        for part in parts
    ]
    sentences = []
    for title, column in columns.items():
        alone = {part: ms for part, ms in column.items() if part.endswith(" alone")}
        if alone and {"none", "all"} <= set(column):
            part = min(alone, key=alone.get)
            changes = [f"{100 * (ms / column['none'] - 1):+.0f} %" for ms in (column["all"], alone[part])]
            sentences.append(
                f"In {title} all of them together change the time by {changes[0]}; "
                f"the most effective one alone, `{part.removesuffix(' alone')}`, by {changes[1]}."
            )
    parts = [f"{name} {text.split('+')[0]}" for name, text in result["versions"].items() if name != "flatgpt"]
    caption = f"**{machine(result)}** ({result['date'][:10]}, {', '.join(parts)}; `{result['command']}`):\n"
    return (
        f"{caption}\n{table(['variables', *(f'ms a step, {title}' for title in columns)], rows)}\n"
        + "\n".join(sentences)
        + "\n"
    )


def generation_rows(result):
    """(type, figure, our rate, {peer: its rate}) for every type that ours was measured in, and every figure."""
    measured = result["results"] if result else {}
    for kind, (ours, names) in ALIKE.items():
        for figure in figures(measured.get(ours, {})):
            peers = {name: measured[name][figure]["rate"] for name in names if name in measured}
            yield kind, figure, measured[ours][figure]["rate"], peers


def comparisons(results):
    """Every comparison with a peer: (how fast ours is, the peer being 1; its description)."""
    for what, model in MODELS.items():
        result = results.of(what)
        for dtype in dtypes(result) if result else ():
            for side in SIDES:
                ratio = ours_over(result, side, dtype) if side != "ours" else None
                if ratio:
                    share = f"{1 / ratio:.2f} of the speed of {SIDES[side]}"
                    yield 1 / ratio, f"a training step of {model} in {dtype} ({share})"
    result = results.of(GENERATION)
    for kind, figure, ours, peers in generation_rows(result):
        if peers:
            peer = max(peers, key=peers.get)
            title = f"reading a {figure_title(result, figure)}" if figure == "prompt" else figure
            share = f"{ours / peers[peer]:.2f} of the speed of {peer}"
            yield ours / peers[peer], f"generating, {title} tokens in {kind} ({share})"


def slower(results):
    """One sentence that says where we are slower than a peer."""
    found = list(comparisons(results))
    behind = [text for ratio, text in sorted(found) if ratio < 1]
    absent = [model for what, model in MODELS.items() if not results.of(what)]
    absent += [] if results.of(GENERATION) else ["generation"]
    end = f"\nNot compared there: {'; '.join(absent)}.\n" if absent else "\n"
    if not behind:
        return f"flatgpt is slower than a peer in none of {len(found)} comparisons ({results.place()}).{end}"
    count = f"{len(behind)} of {len(found)} comparisons, {results.place()}"
    return f"**Where flatgpt is slower than a peer** ({count}):\n" + ";\n".join(behind) + f".{end}"


def behind(results):
    """slower() in two sentences, for README.md."""
    found, sentences = list(comparisons(results)), []
    for doing, of in (("training", "a training"), ("generating text", "generating")):
        every = [(ratio, text) for ratio, text in found if text.startswith(of)]
        slow = sorted((ratio, text) for ratio, text in every if ratio < 1)
        if every and not slow:
            sentences.append(f"In {doing} flatgpt is faster than each peer in all {len(every)} comparisons on that machine.")
        if slow:
            peers = listed(list(dict.fromkeys(text.rsplit("the speed of ")[1].split()[0].rstrip(")") for _, text in slow)))
            ratios = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio, _ in (slow[0], slow[-1])))
            sentences.append(f"In {doing} it is slower in {len(slow)} of {len(every)}, where it has {ratios} times the speed of {peers}.")
    return filled(" ".join(sentences) + " [Which comparisons](docs/performance.md#where-is-flatgpt-slower-than-a-peer).")


def peers_means(results):
    """True of every benchmark of training that was measured."""
    found = trained(results).values()
    given = found and all(any(result.get("environment", {}).values()) for result in found)
    return f"{'with' if given else 'without'} the huge pages and bound threads that flatgpt takes by itself"


def picture(results):
    """README.md's picture, its caption, and where a peer is faster."""
    result = results.of(PICTURED)
    if not result:
        return results.missing()
    caption = (
        f"*{MODELS[PICTURED]} tokens a step, fp32, on {results.place()}: measured in turns in one run, medians. "
        f"PyTorch {result['versions'].get('PyTorch', '').split('+')[0]} is the better of plain and torch.compile. "
        f"The peers train {peers_means(results)}."
    )
    if best_ms(result, "llmc"):
        caption += " llm.c's reference program for CPUs is fixed to this small batch and to fp32."
    if longest := results.of("training-d12-1024"):
        ratios = [(dtype, ours_over(longest, "pytorch", dtype)) for dtype in dtypes(longest)]
        times = listed([f"{1 / ratio:.2f} times PyTorch's in {dtype}" for dtype, ratio in ratios if ratio])
        caption += f" With 1 x 1024 tokens flatgpt's speed is {times}."
    image = f"![training speed of PyTorch, llm.c and flatgpt on {result['machine']['cores']} cores]({PICTURE})"
    return f"{image}\n\n{filled(caption + ' [All figures](docs/performance.md).*')}\n{behind(results)}"


def filled(text):
    """A paragraph of a page."""
    return textwrap.fill(text, 150, break_long_words=False, break_on_hyphens=False) + "\n"


def bars(results):
    """The figures of docs/speed.png: the best of every side in fp32, [name, side, tokens/s, ms a step]."""
    result, found = results.of(PICTURED), []
    for side in ("pytorch", "llmc", "ours") if result else ():
        if ms := best_ms(result, side, "fp32"):
            found.append([SIDES[side], side, 1000 * result["options"]["total_batch"] / ms, ms])
    title = f"{MODELS[PICTURED]} tokens a step, fp32, on {results.last['machine']['cores']} CPU cores"
    return dict(title=title, place=results.place(), bars=found)


def drawn(path):
    """The figures that bars() had returned when the picture was drawn; None if it does not say, or is missing."""
    if not path.exists():
        return None
    data, place = path.read_bytes(), 8
    while place < len(data):
        (length,), kind = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        key, _, value = data[place + 8 : place + 8 + length].partition(b"\0")
        if (kind, key) == (b"tEXt", b"figures"):
            return json.loads(value)
        place += 12 + length
    return None


def of_gpu(results, name):
    """A table, or a sentence, of what a GPU did."""
    path = None
    try:
        path, report = gpu_tables.newest(results.gpus, name)
        if not report:
            return "Not measured yet.\n"
        if name in gpu_tables.SENTENCES:
            return gpu_tables.SENTENCES[name][0](report)
        return table(*gpu_tables.TABLES[name][0](report))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        sys.exit(f"tables: {path or name}: is no report of a GPU: {type(error).__name__}: {error}")


def quoted(results, name):
    """Lines of a source, as README.md shows them."""
    path, first, last = QUOTED[name]
    lines = (results.root / path).read_text().splitlines()
    begin = [place for place, line in enumerate(lines) if first in line]
    end = [place for place in range(begin[0], len(lines)) if last in lines[place]] if begin else []
    if not end:
        sys.exit(f"tables: {path} has no lines from {first} to {last}, which QUOTED names")
    code = textwrap.dedent("\n".join(lines[begin[0] : end[0] + 1]))
    return f"```cpp\n{code}\n```\n"


TABLES = {
    "picture": picture,
    "slower": slower,
    "training": training,
    "memory": memory,
    "generate": generate,
    "processes": processes,
    "variables": variables,
}
TABLES |= {name: lambda results, name=name: quoted(results, name) for name in QUOTED}
TABLES |= {name: lambda results, name=name: of_gpu(results, name) for name in gpu_tables.TABLES | gpu_tables.SENTENCES}


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
            if "table: picture -->" in text and drawn(arguments.root / PICTURE) != bars(results):
                print(
                    f"tables: {PICTURE} shows other figures than dev/bench/results; run: dev/draw_speed.py",
                    file=sys.stderr,
                )
                differ = True
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
