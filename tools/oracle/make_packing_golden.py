#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes orders of PyTorch and NumPy, and the rows that XTuner's soft and hard packing make with them.

    pip install numpy torch
    tools/oracle/make_packing_golden.py tests/golden/data/packing.json

The packing follows the description of XTuner v1's `pack_level` soft (target length, chunks of 10,000, a buffer of
100, equal lengths in their order) and hard; the orders are drawn by the libraries themselves.
"""
import json
import sys

import numpy
import torch

CHUNK, BUFFER = 10_000, 100


def soft(lengths, capacity, seed):
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    rows = []
    for start in range(0, len(order), CHUNK):
        left, row, free = order[start:start + CHUNK], [], capacity
        while left:
            last = left.pop()
            if row and lengths[last] > free:
                candidates = left[-BUFFER:]
                sizes = numpy.array([lengths[i] for i in candidates], dtype=numpy.int64)
                ranks = numpy.argsort(sizes, kind="stable")
                fitting = ranks[: int(numpy.searchsorted(numpy.cumsum(sizes[ranks]), free, side="right"))]
                row += [candidates[i] for i in fitting]
                left = left[: len(left) - len(candidates)] + [d for i, d in enumerate(candidates) if i not in set(fitting.tolist())]
                rows.append(row)
                row, free = [], capacity
            row.append(last)
            free -= lengths[last]
        rows.append(row)
    return rows


def hard(lengths, capacity, seed):
    order = numpy.arange(len(lengths))
    numpy.random.RandomState(seed).shuffle(order)
    owner = numpy.repeat(order, [lengths[i] for i in order])
    offset = numpy.concatenate([numpy.arange(lengths[i]) for i in order])
    rows = []
    for row in range(len(owner) // capacity):
        pieces = []
        for t in range(row * capacity, (row + 1) * capacity):
            if pieces and pieces[-1][0] == owner[t]:
                pieces[-1][2] += 1
            else:
                pieces.append([int(owner[t]), int(offset[t]), int(offset[t]) + 1])
        rows.append(pieces)
    return rows


def main():
    golden = {"made_by": f"torch {torch.__version__}, numpy {numpy.__version__}", "orders": [], "cases": []}
    for count, seed in [(1, 0), (2, 1), (10, 42), (257, 7), (1000, 4294967295)]:
        order = numpy.arange(count)
        numpy.random.RandomState(seed).shuffle(order)
        randperm = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        golden["orders"].append({"count": count, "seed": seed, "torch": randperm, "numpy": order.tolist()})
    for count, longest, capacity, seed in [(60, 40, 64, 42), (300, 200, 256, 3), (40, 10, 8, 9)]:
        lengths = numpy.random.RandomState(count).randint(1, longest + 1, count).tolist()
        kept = [min(length, capacity) for length in lengths]
        golden["cases"].append({"capacity": capacity, "seed": seed, "lengths": lengths,
                                "soft": soft(kept, capacity, seed), "hard": hard(lengths, capacity, seed)})
    lengths = numpy.random.RandomState(5).randint(1, 33, 10_500).tolist()
    golden["large"] = {"capacity": 64, "seed": 11, 
                       "lengths": lengths, "soft_documents": [len(row) for row in soft(lengths, 64, 11)]}
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


main()
