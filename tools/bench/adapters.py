#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoRA and DPO against peft and transformers, alternating; speed, memory and their ratios.

    tools/bench/adapters.py --program build/release/stepforge --python VENV/bin/python [--rounds 3] [--cases lora-0.6b,lora-1b,nf4-0.6b,
                            nf4-1b,nf4-4b,nf4-8b,dpo-0.6b]

One row of 512 tokens a step, rank 16, bf16, two threads. Cases with nf4 compare with Stepforge's own bf16, those of 4B and 8B run alone.
Memory is the largest resident size of the process. The first two steps are not counted.
The ratios mean something only on a processor with products of bf16 (AVX512_BF16 or AMX): PyTorch emulates them on others.
"""
import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from compare import WARMUP_STEPS, measured
from machine import environment, print_machine, touch_memory
from work import configuration

HERE = Path(__file__).resolve().parent
TOML = HERE / "adapters.toml"
SHAPES = {
    "0.6b": [],
    "1b": ['model.family="llama"', "model.dim=2048", "model.n_layers=16", "model.n_heads=32", "model.head_dim=64", "model.ffn_dim=8192",
           "model.vocab_size=128256"],
    "4b": ["model.dim=2560", "model.n_layers=36", "model.n_heads=32", "model.ffn_dim=9728"],
    "8b": ["model.dim=4096", "model.n_layers=36", "model.n_heads=32", "model.ffn_dim=12288", "model.tie_embeddings=false"],
}  # fmt: skip
CASES = ["lora-0.6b", "lora-1b", "nf4-0.6b", "nf4-1b", "dpo-0.6b", "nf4-4b", "nf4-8b"]
NF4 = 'model.frozen_dtype="nf4"'


def pairs_of(folder, half):
    """Pairs of answers in bytes, of which both halves have `half` tokens, with the end of the text."""
    path = folder / "pairs.jsonl"
    records = [
        {"prompt": f"{i:04}" + "p" * 60, "chosen": chr(97 + i % 26) * (half - 65), "rejected": chr(98 + i % 25) * (half - 65)}
        for i in range(64)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [f'data.sources=[{{path="{path}",format="preference"}}]', f'data.cache_dir="{folder}"', 'preference.loss="dpo"']


def run_stepforge(options, kind, overrides):
    folder = Path(tempfile.mkdtemp(prefix="stepforge-bench."))
    try:
        seq_len = configuration(TOML, [])["training"]["seq_len"]
        data = pairs_of(folder, seq_len // 2) if kind == "dpo" else []
        command = [options.program, "train", TOML, f"run_dir={folder / 'run'}", *overrides, *data]
        _, _, resident = measured(command, environment(2))
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        return {"step_seconds": [line["time_metrics/end_to_end(s)"] for line in lines if line["kind"] == "train"], "peak_bytes": resident}
    finally:
        shutil.rmtree(folder)


def run_peer(options, kind, overrides):
    command = [options.python, HERE / "adapters_peer.py", kind, TOML, *overrides]
    output, _, resident = measured(command, environment(2, tuned=True))
    return {"step_seconds": json.loads(output.splitlines()[-1])["step_seconds"], "peak_bytes": resident}


def programs_of(kind, shape):
    """Name, and what runs it: the one that is measured, then the one that it is compared with."""
    ours = {"Stepforge": lambda options: run_stepforge(options, kind, SHAPES[shape] + ([NF4] if kind == "nf4" else []))}
    if kind != "nf4":
        ours["peft"] = lambda options: run_peer(options, kind, SHAPES[shape])
    elif shape in ("0.6b", "1b"):
        ours["Stepforge, bf16"] = lambda options: run_stepforge(options, "lora", SHAPES[shape])
    return ours


def bench(options, case):
    kind, shape = case.split("-")
    programs = programs_of(kind, shape)
    runs = {name: [] for name in programs}
    for number in range(options.rounds):
        for name, run in programs.items():
            print(f"{case}: round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            touch_memory()
            runs[name].append(run(options))
    rows, noise = {}, 0.0
    for name, of_program in runs.items():
        medians = [statistics.median(run["step_seconds"][WARMUP_STEPS:]) for run in of_program]
        noise = max(noise, max(medians) / min(medians) - 1)
        rows[name] = statistics.median(medians), max(run["peak_bytes"] for run in of_program) / 2**30
        print(f"{case:10} {name:16} {rows[name][0]:7.2f} s/step {512 / rows[name][0]:7.1f} tokens/s {rows[name][1]:6.2f} GiB")
    if len(rows) == 2:
        (ours, our_memory), (theirs, their_memory) = rows.values()
        floor = f"noise {noise:.1%}" if options.rounds > 1 else "noise unknown"
        print(f"{case:10} ratios: speed x {theirs / ours:.2f}, memory x {our_memory / their_memory:.2f} ({floor})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="a python with torch, transformers and peft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=CASES)
    options = parser.parse_args()
    print_machine()
    for case in options.cases:
        bench(options, case)


if __name__ == "__main__":
    main()
