#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Stepforge with PyTorch over lengths of a row, with one document in a row and with many.

    tools/bench/lengths.py --program build/release/stepforge --python VENV/bin/python [--rounds 1] [--lengths 256,512,…,8192]
                           [--documents 0,512] [--steps 5]

The model of small.toml in fp32, 8,192 tokens per step. --documents: their mean length; 0 is one document per row. With one document the
peers' attention is scaled_dot_product_attention with is_causal. With several, that of "PyTorch eager" has a mask of blocks, and that of
"eager, tuned" runs for one document after another (peer.py).
"""
import argparse
import sys
from pathlib import Path

from compare import HERE, NAMES, print_noise, run, summarize
from machine import peak, print_machine
from work import configuration, work_of

TOKENS = 8192
PROGRAMS = ["stepforge", "eager", "eager-tuned"]


def bench(options, length, mean):
    overrides = [
        f"training.seq_len={length}", f"training.local_batch_size={TOKENS // length}", f"training.steps={options.steps}",
        f"model.max_position={max(options.lengths)}", f"data.synthetic_document_length={mean}",
    ]  # fmt: skip
    toml = HERE / "small.toml"
    config = configuration(toml, overrides)
    threads = config["training"]["threads"]
    runs = {name: [] for name in PROGRAMS}
    for number in range(1, options.rounds + 1):
        for name in PROGRAMS:
            print(f"{length} tokens, documents of {mean or length}: round {number}: {NAMES[name]}", file=sys.stderr, flush=True)
            runs[name].append(run(options, name, toml, overrides, threads))
    return {name: summarize(list_of_runs, *work_of(config), peak(threads)["fp32"]) for name, list_of_runs in runs.items()}


def main():
    def numbers(text):
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="a python with torch")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--lengths", type=numbers, default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--documents", type=numbers, default=[0, 512])
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print_machine()
    print("Speed in tokens/s and memory in MiB, of Stepforge over the peer's:")
    print(f"{'row':>6}{'documents':>11}" + "".join(f"{NAMES[name]:>15}" for name in PROGRAMS) + "  speed against each, memory against each")
    tables = []
    for mean in options.documents:
        for length in options.lengths:
            if mean >= length:
                continue
            table = bench(options, length, mean)
            ours, *theirs = table.values()
            speeds = "".join(f"  x {ours['median_tps'] / row['median_tps']:.2f}" for row in theirs)
            memory = "".join(f"  x {ours['peak_mib'] / row['peak_mib']:.2f}" for row in theirs)
            print(f"{length:6}{mean or length:11}" + "".join(f"{row['median_tps']:15.0f}" for row in table.values()), f"{speeds},{memory}", flush=True)
            tables.extend(table.values())
    print_noise(tables)


if __name__ == "__main__":
    main()
