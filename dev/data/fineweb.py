#!/usr/bin/env python3
"""Token shards of FineWeb or FineWeb-Edu (Penedo et al. 2024, arXiv:2406.17557): samples of 10 or 100 billion tokens.

    dev/data/fineweb.py --type classic|edu --size 10B|100B     # dev/data/fineweb10B/fineweb_val_000000.bin, fineweb_train_000001.bin and on

The sources are the hub's data sets HuggingFaceFW/fineweb and HuggingFaceFW/fineweb-edu. As in llm.c, shards have 100 million tokens in the order
of the data set, and the first is for validation. 10B are 103 shards of 200 MB, made from 28 GB of parquet files.
"""
import shards

TYPES = {"classic": ("HuggingFaceFW/fineweb", "fineweb"), "edu": ("HuggingFaceFW/fineweb-edu", "edu_fineweb")}
SIZES = {"10B": "sample/10BT/*.parquet", "100B": "sample/100BT/*.parquet"}


def main():
    parser = shards.parser(__doc__)
    parser.add_argument("--type", choices=sorted(TYPES), default="classic", help="edu: pages of educational value")
    parser.add_argument("--size", choices=sorted(SIZES), default="10B", help="of the sample, in tokens")
    options = parser.parse_args()
    repository, name = TYPES[options.type]
    options.out = options.out or shards.HERE / f"{name}{options.size}"
    source = shards.open_source(options, repository)
    shards.write(options, shards.documents_of(source, source.files([SIZES[options.size]])), f"{name}_")


if __name__ == "__main__":
    shards.run(main)
