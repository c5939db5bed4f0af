#!/usr/bin/env python3
"""Counts the lines that docs/ARCHITECTURE.md sends a reader through: the plain loops, the core, what is around it, and Llama's part."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = re.compile(r"`([\w/]+\.(?:cu|cuh|h|cpp))`")


def sources_to_read():
    """The sources to begin with, those of the core, those around it, and those of Llama, in the order of reading."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    reading = text.split("## In which order to read")[1].split("\n## ")[0]
    parts = re.split("The core, from|Around it|Another family", reading)
    return [[ROOT / name for name in SOURCE.findall(part)] for part in parts]


def main():
    total = 0
    for name, paths in zip(("to begin with", "core", "around it", "Llama"), sources_to_read()):
        lines = {path: len(path.read_text().splitlines()) for path in paths}
        for path, count in lines.items():
            print(f"{count:6} {path.relative_to(ROOT)}")
        total += sum(lines.values())
        print(f"{sum(lines.values()):6} {name}\n")
    print(f"{total:6} in all")


if __name__ == "__main__":
    main()
