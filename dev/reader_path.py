#!/usr/bin/env python3
"""Counts the lines that docs/ARCHITECTURE.md sends a reader through: the core, and all of it."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = re.compile(r"`([\w/]+\.(?:cu|cuh|h|cpp))`")


def main():
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    reading = text.split("## In which order to read")[1].split("\n## ")[0]
    core, around = (SOURCE.findall(part) for part in reading.split("Around it"))
    total = 0
    for name, files in (("core", core), ("around it", around)):
        lines = {file: len((ROOT / file).read_text().splitlines()) for file in files}
        for file, count in lines.items():
            print(f"{count:6} {file}")
        total += sum(lines.values())
        print(f"{sum(lines.values()):6} {name}\n")
    print(f"{total:6} in all")


if __name__ == "__main__":
    main()
