#!/usr/bin/env python3
"""Token shards of OpenWebText: an open reproduction of GPT-2's training data, about 9 billion tokens from 8 million pages.

    dev/data/openwebtext.py     # dev/data/openwebtext/openwebtext_val_000000.bin, openwebtext_train_000001.bin and on

The source is the hub's data set Skylion007/openwebtext. The first --val-tokens tokens are held out (default: 4.4 million, as many as in nanoGPT).
"""
import shards

FILES = ["plain_text/train-*.parquet", "plain_text/train/*.parquet", "data/train-*.parquet"]


def main():
    parser = shards.parser(__doc__, "openwebtext")
    parser.add_argument("--val-tokens", type=int, default=4_400_000, metavar="N", help="for validation (default: 4.4 million)")
    options = parser.parse_args()
    source = shards.open_source(options, "Skylion007/openwebtext")
    shards.write(options, shards.documents_of(source, source.files(FILES)), "openwebtext_", val_tokens=options.val_tokens)


if __name__ == "__main__":
    shards.run(main)
