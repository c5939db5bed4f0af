#!/usr/bin/env python3
"""Token shards of TinyStories: simple stories for small models (Eldan and Li 2023, arXiv:2305.07759), about 0.5 billion tokens.

    dev/data/tinystories.py [--stories 1|2]     # dev/data/tinystories/TinyStories_train_000000.bin and on, TinyStories_val_000000.bin

The source is the hub's data set roneneldan/TinyStories: parquet files, or with --stories 2 the texts written by GPT-4 alone.
"""
import shards

FILES = {
    "1": {"val": ["data/validation-*.parquet"], "train": ["data/train-*.parquet"]},
    "2": {"val": ["TinyStoriesV2-GPT4-valid.txt"], "train": ["TinyStoriesV2-GPT4-train.txt"]},
}


def main():
    parser = shards.parser(__doc__, "tinystories")
    parser.add_argument("--stories", choices=sorted(FILES), default="1", help="2: those by GPT-4 alone")
    options = parser.parse_args()
    prefix = "TinyStories_" if options.stories == "1" else "TinyStoriesV2_"
    source = shards.open_source(options, "roneneldan/TinyStories", prefix=prefix)
    for split, patterns in FILES[options.stories].items():  # validation first
        shards.write(options, shards.documents_of(source, source.files(patterns), change=str.strip), prefix, split)


if __name__ == "__main__":
    shards.run(main)
