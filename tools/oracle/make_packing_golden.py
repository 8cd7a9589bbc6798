#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes orders of PyTorch, NumPy and Python, the rows that XTuner's soft and hard packing and VeOmni's dynamic batches
make, and the order of XTuner's LengthGroupedSampler.

    pip install numpy torch
    tools/oracle/make_packing_golden.py tests/golden/data/packing.json

The packing follows the description of XTuner v1's `pack_level` soft (target length, chunks of 10,000, a buffer of
100, equal lengths in their order) and hard, of VeOmni's dynamic batches of a token budget from a buffer of at least 200
samples, and of XTuner's sampler; the orders are drawn by the libraries themselves.
"""
import json
import random
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


def budget(lengths, capacity):
    """A sample that is over budget is forced and fills the row alone, so its length counts as the budget."""
    arrived, rows = 0, []
    buffer = []
    while arrived < len(lengths) or buffer:
        if arrived < len(lengths) and not (len(buffer) >= 200 and sum(lengths[i] for i in buffer) >= capacity):
            buffer.append(arrived)
            arrived += 1
            continue
        row, total = [], 0
        for sample in list(buffer):
            if total + lengths[sample] <= capacity:
                row.append(sample)
                total += lengths[sample]
                buffer.remove(sample)
        rows.append(row)
    return rows


def grouped(lengths, step, group, seed):
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    generator = random.Random(seed)
    block = max(1, min(len(lengths) // (4 * step), 50)) * step
    result = []
    for begin in range(0, len(order), block):
        rows = sorted(order[begin:begin + block], key=lambda row: -lengths[row])
        groups = [rows[i:i + group] for i in range(0, len(rows), group)]
        rest = groups.pop() if len(groups[-1]) < group else []
        generator.shuffle(groups)
        result += sum(groups, []) + rest
    return result


def main():
    golden = {"made_by": f"torch {torch.__version__}, numpy {numpy.__version__}", "orders": [], "cases": []}
    for count, seed in [(1, 0), (2, 1), (10, 42), (257, 7), (1000, 4294967295)]:
        order = numpy.arange(count)
        numpy.random.RandomState(seed).shuffle(order)
        randperm = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        golden["orders"].append({"count": count, "seed": seed, "torch": randperm, "numpy": order.tolist()})
    for count, seed in [(1, 0), (2, 1), (10, 42), (257, 4294967295), (300, 4294967296), (100, 10**15)]:
        order = list(range(count))
        random.Random(seed).shuffle(order)
        golden.setdefault("python", []).append({"count": count, "seed": seed, "order": order})
    for count, longest, capacity, seed in [(60, 40, 64, 42), (300, 200, 256, 3), (40, 10, 8, 9)]:
        lengths = numpy.random.RandomState(count).randint(1, longest + 1, count).tolist()
        kept = [min(length, capacity) for length in lengths]
        golden["cases"].append({"capacity": capacity, "seed": seed, "lengths": lengths,
                                "soft": soft(kept, capacity, seed), "hard": hard(lengths, capacity, seed)})
    for count, longest, capacity in [(30, 40, 64), (700, 64, 64), (900, 30, 512), (2500, 8, 4096), (250, 300, 200)]:
        lengths = numpy.random.RandomState(count).randint(1, longest + 1, count).tolist()
        golden.setdefault("budget", []).append(
            {"capacity": capacity, "lengths": lengths, "rows": budget([min(n, capacity) for n in lengths], capacity)})
    for count, step, group, seed in [(7, 8, 8, 1), (64, 4, 4, 3), (333, 8, 2, 42), (1000, 4, 4, 2**40 + 5)]:
        lengths = numpy.random.RandomState(count).randint(1, 20, count).tolist()
        golden.setdefault("grouped", []).append(
            {"step": step, "group": group, "seed": seed, "lengths": lengths, "order": grouped(lengths, step, group, seed)})
    lengths = numpy.random.RandomState(5).randint(1, 33, 10_500).tolist()
    golden["large"] = {"capacity": 64, "seed": 11, 
                       "lengths": lengths, "soft_documents": [len(row) for row in soft(lengths, 64, 11)]}
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


main()
