#!/usr/bin/env python3
"""The folders are the map: a source includes only from its own folder and from those below it; lines and functions are short, links lead
somewhere, and what the chapters quote is in the code."""
import os
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "dev"))
import reader_path  # noqa: E402

# from the lowest layer up
FOLDERS = ["system", "kernels/simt", "kernels", "kernels/gemm", "kernels/attention", "kernels/decode",
           "trainer/distributed", "trainer/tokenizer", "trainer/data", "trainer/formats", "trainer/engine", "trainer/models",
           "trainer/models/gpt2", "trainer/models/llama", "trainer/checkpoint", "trainer/inference", "trainer/command_line", "trainer/run"]
# Only the list of families includes the folder of a family.
FAMILIES = [folder for folder in FOLDERS if folder.startswith("trainer/models/")]
LIST_OF_FAMILIES = ["trainer/models/families.cpp", "trainer/models/families.cu"]
# Names of GPT-2's tensors and activations, and sizes of its matrices.
NAMES_OF_A_FAMILY = re.compile(r"\b(?:wte|wpe|ln_?[12f]|lnf|qkv|c_attn|att|attproj|c_proj|fc|c_fc|fcproj|fch|gelu|[34] \* C)(?:_|\b)")
MOST_SOURCES, MOST_COLUMNS, MOST_LINES, MOST_LINES_TO_READ = 40, 110, 80, 50
# A flash attention kernel is one pass over tiles whose registers and shared memory live to its end: a function cut out of it
# would take a dozen references, and nvcc would have to see through them. The same holds for two kernels of the reader's path
# that only a GPU launches.
LONGER = {"kernels/attention/attention_mma.cuh": 95}
LONGER_TO_READ = {"kernels/layernorm_backward_wide.cuh": 55, "kernels/cross_entropy_gradient.cuh": 54}
MOST_COLUMNS_OF_TEXT = 160
LINK = re.compile(r"\[[^\]\[]*\]\(([^()\s]+)\)|(?:href|src)=\"([^\"]+)\"")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def code(line):
    """Without the comment at its end, and with single spaces."""
    return " ".join(line.split("//")[0].split())


def pages():
    for path in sorted(ROOT.rglob("*.md")):
        if path.relative_to(ROOT).parts[0] not in ("build", "runs", "shared"):
            yield path


def anchors(text):
    """The texts that a link may have after #: a heading in lower case, without punctuation, with hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-") for heading in headings}


def broken_links(path):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for match in LINK.finditer(text):
        link = match.group(1) or match.group(2)
        file, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = path.parent / file if file else path
        if not target.exists() or anchor and anchor not in anchors(target.read_text()):
            yield link


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).iterdir())
            if path.suffix in (".cpp", ".cu", ".cuh", ".h")]


def all_sources():
    for path in sorted(ROOT.rglob("*")):
        if path.suffix in (".cpp", ".cu", ".cuh", ".h") and path.relative_to(ROOT).parts[0] not in ("build", "runs"):
            yield path


BLANKED = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'""", re.DOTALL)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def functions(text):
    """(first line, number of lines, text before the brace) of every function, without nested ones."""
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, BLANKED.sub(blank, text), flags=re.MULTILINE)
    found, outside, start, depth, parentheses = [], True, 0, 0, 0
    body_depth = first = 0
    for match in re.finditer(r"[{}();]", text):
        token = match.group(0)
        parentheses += (token == "(") - (token == ")")
        if token == "{":
            head = text[start:match.start()].strip()
            plain = re.sub(r"template\s*<[^{}]*?>\s*(?=[\w_])", "", head)
            scope = re.match(r"(?:inline\s+|extern\s+|typedef\s+)*(?:namespace|struct|class|union|enum)\b|extern\b", plain)
            if outside and "(" in head and not scope and parentheses == 0:
                outside, body_depth = False, depth
                first = text.count("\n", 0, match.start() - len(text[start:match.start()].lstrip())) + 1
            depth += 1
            if outside and parentheses == 0:
                start = match.end()
        elif token == "}":
            depth -= 1
            if not outside and depth == body_depth and not re.match(r"\s*[,{]", text[match.end():]):
                found.append((first, text.count("\n", 0, match.start()) + 2 - first, head))
                outside = True
            if outside and parentheses == 0:
                start = match.end()
        elif token == ";" and outside and parentheses == 0:
            start = match.end()
    return found


class Layout(unittest.TestCase):
    def test_every_folder_with_sources_has_its_place(self):
        found = {str(path.parent.relative_to(ROOT)) for top in ("system", "kernels", "trainer")
                 for path in (ROOT / top).rglob("*") if path.suffix in (".cpp", ".cu", ".cuh", ".h")}
        self.assertEqual(found, set(FOLDERS))

    def test_includes_come_from_folders_below(self):
        for path in sources(*FOLDERS):
            own = str(path.parent.relative_to(ROOT))
            allowed = FOLDERS[:FOLDERS.index(own) + 1]
            for included in INCLUDE.findall(path.read_text()):
                with self.subTest(f"{path.relative_to(ROOT)} includes {included}"):
                    self.assertTrue((ROOT / included).is_file(), "expected a path from the root of the project")
                    lists = str(path.relative_to(ROOT)) in LIST_OF_FAMILIES
                    self.assertIn(str(pathlib.PurePath(included).parent), allowed + FAMILIES if lists else allowed)

    def test_only_the_list_and_its_tests_know_a_family(self):
        for path in all_sources():
            place = path.relative_to(ROOT)
            if str(place) in LIST_OF_FAMILIES or place.parts[0] in ("test", "dev"):
                continue
            for included in INCLUDE.findall(path.read_text()):
                if (folder := str(pathlib.PurePath(included).parent)) in FAMILIES:
                    self.assertEqual(str(place.parent), folder, f"{place} includes {included}")

    def test_the_engine_names_no_tensor_of_a_family(self):
        self.assertEqual(NAMES_OF_A_FAMILY.findall('"h.0.ln_1.weight" 4 * C gelu_ attn fcx'), ["ln_1", "4 * C", "gelu_"])
        for path in sources("trainer/engine"):
            if path.name == "cost.h":  # counts what the kernels do, by the kernels' names
                continue
            code = re.sub(r"//[^\n]*", "", path.read_text())
            with self.subTest(str(path.relative_to(ROOT))):
                self.assertEqual(NAMES_OF_A_FAMILY.findall(code), [])

    def test_no_folder_has_too_many_sources(self):
        for folder in FOLDERS:
            with self.subTest(folder):
                self.assertLessEqual(len(sources(folder)), MOST_SOURCES)

    def test_scripts_can_be_started_by_their_names(self):
        scripts = [path for folder in ("scripts", "dev", "test") for ending in ("*.sh", "*.py") for path in (ROOT / folder).rglob(ending)
                   if path.read_text().startswith("#!")]
        self.assertGreater(len(scripts), 50, "scripts were overlooked")
        for path in scripts:
            with self.subTest(str(path.relative_to(ROOT))):
                self.assertTrue(os.access(path, os.X_OK), "expected it to be executable")

    def test_no_line_is_too_long(self):
        for path in all_sources():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) > MOST_COLUMNS:
                    self.fail(f"{path.relative_to(ROOT)}:{number} has {len(line)} columns; expected at most {MOST_COLUMNS}")

    def test_no_line_of_a_page_is_too_long(self):
        self.assertGreater(len(list(pages())), 15, "pages were overlooked")
        for path in pages():
            place = str(path.relative_to(ROOT))
            longer = [number for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > MOST_COLUMNS_OF_TEXT]
            with self.subTest(place):
                self.assertEqual(longer, [], f"lines {longer} have more than {MOST_COLUMNS_OF_TEXT} columns")

    def test_links_lead_somewhere(self):
        self.assertEqual(anchors("# A page's *title*, 2\n```\n# no\n```\n## [x](y) g++\n"), {"a-pages-title-2", "x-g"})
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder, "page.md")
            page.write_text("# Here\n[a](#here) [b](#there) ![c](page.md#here) [d](none.png) [e](https://example.org) `[f](none)`\n")
            self.assertEqual(list(broken_links(page)), ["#there", "none.png"])
        found = {str(path.relative_to(ROOT)): list(broken_links(path)) for path in pages()}
        self.assertGreater(sum(len(LINK.findall(path.read_text())) for path in pages()), 100, "links were overlooked")
        self.assertEqual({place: links for place, links in found.items() if links}, {})

    def test_what_chapters_quote_stands_in_the_file_named_before_it(self):
        count = 0
        for page in sorted((ROOT / "docs/learn").glob("[0-9]*.md")):
            parts, before = re.split(r"^```cpp\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL), ""
            for text, quoted in zip(parts[::2], parts[1::2]):
                before += text
                name = re.findall(r"`((?:kernels|trainer|dev)/[\w/]+\.(?:cuh|cu|cpp|h))`", before)[-1]
                lines, at = [code(line) for line in (ROOT / name).read_text().splitlines()], 0
                for line in map(code, quoted.splitlines()):
                    if line in ("", "..."):
                        continue
                    count += 1
                    with self.subTest(page=page.name, file=name, line=line):
                        self.assertTrue(line in lines[at:], "not there, or not in this order")
                        at += lines[at:].index(line) + 1
        self.assertGreater(count, 80, "quotations were overlooked")

    def test_no_function_is_too_long(self):
        count = 0
        for path in all_sources():
            for first, lines, _ in functions(path.read_text()):
                count += 1
                with self.subTest(f"{path.relative_to(ROOT)}:{first}"):
                    self.assertLessEqual(lines, LONGER.get(str(path.relative_to(ROOT)), MOST_LINES))
        self.assertGreater(count, 3000, "functions were overlooked")

    def test_functions_that_a_reader_is_sent_to_are_shorter(self):
        begin, core, around, llama = reader_path.sources_to_read()
        self.assertGreater(min(len(core), len(around), 3 * len(llama)), 10, "the order of reading was not found")
        for path in begin + core + around + llama:
            for first, lines, _ in functions(path.read_text()):
                with self.subTest(f"{path.relative_to(ROOT)}:{first}"):
                    self.assertLessEqual(lines, LONGER_TO_READ.get(str(path.relative_to(ROOT)), MOST_LINES_TO_READ))

    def test_the_pages_say_how_much_there_is_to_read(self):
        _, *parts = [sum(len(path.read_text().splitlines()) for path in part) for part in reader_path.sources_to_read()]
        wanted = {"README.md": (r"its core, kernels included, is ([\d,]+) lines", parts[:1]),
                  "docs/ARCHITECTURE.md": (r"The core is ([\d,]+) lines, what is around it ([\d,]+), and what only Llama, Qwen3 and nanochat have ([\d,]+) ", parts)}  # fmt: skip
        for page, (sentence, counts) in wanted.items():
            said = re.search(sentence, re.sub(r"\s+", " ", (ROOT / page).read_text()))
            for number, count in zip(said.groups(), counts, strict=True):
                self.assertAlmostEqual(int(number.replace(",", "")), count, delta=100, msg=page)  # pages round to hundreds

    def test_functions_are_measured(self):
        text = "namespace n {\nstruct S {\n    int x = f(\n        1);\n    void g(int a = {}) {\n        if (a) {\n        }\n    }\n};\n}\n" \
               "S::S()\n    : x_{1} {\n    // {\n    h(\"{\");\n}\n"
        self.assertEqual([(first, lines) for first, lines, _ in functions(text)], [(5, 4), (11, 5)])


if __name__ == "__main__":
    unittest.main()
