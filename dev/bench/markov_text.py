#!/usr/bin/env python3
"""Makes a long token shard from short ones: each next token is one that follows the token at a random place in them.

    dev/bench/markov_text.py --tokens 31457281 --out text.bin 'build/bench-data/*/train_*.bin'

This first-order Markov source has the frequencies of tokens and pairs of tokens of the given texts, and nothing
longer to memorise, so that many steps can train without a second epoch. The bits depend only on the texts and
--seed, not on numpy's version.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from pytorch_side import SHARD_HEADER_BYTES, SHARD_MAGIC, read_shards  # noqa: E402

WALKS = 4096  # computed side by side, because numpy is fast at that; each becomes a run of neighbouring tokens


def markov_walks(source, count, seed):
    """`count` tokens, walk by walk. The source is a circle: all its tokens have a successor."""
    import numpy as np

    generator = np.random.PCG64(seed)  # numpy guarantees that its raw numbers stay the same
    by_token = np.argsort(source, kind="stable")  # the places of every token, adjacent
    occurrences = np.bincount(source)
    first, length = np.cumsum(occurrences) - occurrences, -(-count // WALKS)

    def draw(below):
        return (
            (generator.random_raw(WALKS) >> np.uint64(32)) * below.astype(np.uint64) >> np.uint64(32)
        ).astype(np.int64)

    place, walks = draw(np.full(WALKS, len(source))), np.empty((length, WALKS), dtype="<u2")
    for tokens in walks:
        tokens[:] = source[place]
        place = by_token[first[tokens] + draw(occurrences[tokens])] + 1
        place[place == len(source)] = 0
    return np.ascontiguousarray(walks.T).reshape(-1)[:count]


def main():
    parser = argparse.ArgumentParser(prog="markov_text", description=__doc__.split("\n", 1)[0])
    parser.error = lambda message: parser.exit(2, f"markov_text: {message}; --help shows the usage\n")
    parser.add_argument("source", help="token shards, a glob")
    parser.add_argument("--tokens", type=int, required=True, help="how many")
    parser.add_argument("--seed", type=int, default=1337, help="(default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    try:
        import numpy as np
    except ImportError:
        sys.exit("markov_text: numpy is missing; it comes with PyTorch")
    text = markov_walks(np.concatenate(read_shards(arguments.source)), arguments.tokens, arguments.seed)
    header = np.zeros(SHARD_HEADER_BYTES // 4, dtype="<i4")
    header[:3] = SHARD_MAGIC, 1, len(text)
    arguments.out.write_bytes(header.tobytes() + text.tobytes())


if __name__ == "__main__":
    main()
