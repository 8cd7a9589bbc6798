#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Stepforge and its peers in turn on the same work and compares them.

    tools/bench/compare.py --program build/release/stepforge --python VENV/bin/python [--rounds 3] [--peers eager,eager-tuned,…]
                           [--models small,large,small_bf16,large_bf16,qwen3_moe,deepseek_v3] [--set section.key=value]…

Every program runs alone, in the same order in each round, so that a slow minute of the machine affects all of them. The first two
steps are not counted. Speed is that of the best and the median step of all rounds. Noise is the spread of the rounds' medians of
one program: a smaller difference between two programs means nothing.

"tuned" and the settings in bf16 are described in peer.py and machine.py. "of peak" is the rate of the products with weights, over what
the processor does at most, by a loop of our own (peak.cpp): multiply-adds in fp32, products of bf16 if the model has them and the
processor too.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import commit, environment, peak, print_machine, processor, touch_memory
from work import configuration, work_of

HERE = Path(__file__).resolve().parent
WARMUP_STEPS = 2
NAMES = {
    "stepforge": "Stepforge", "eager": "PyTorch eager", "eager-tuned": "eager, tuned", "compile": "torch.compile",
    "compile-tuned": "compile, tuned", "hf": "transformers", "hf-tuned": "hf, tuned", "hf-eager": "hf, eager experts",
    "gpt": "GPT-2 in PyTorch", "gpt-tuned": "GPT-2, tuned",
}  # fmt: skip
PEERS = ["eager", "eager-tuned", "compile", "compile-tuned", "hf", "hf-eager"]
MODELS = ["small", "large", "small_bf16", "large_bf16", "qwen3_moe", "deepseek_v3"]


def measured(command, variables):
    """Output, start time and peak resident bytes of a process."""
    began = time.time()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables, stdin=subprocess.DEVNULL)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, command))} failed:\n{output}{errors.read()}")
    return output, began, usage.ru_maxrss * 1024


def run_stepforge(options, toml, overrides, threads):
    folder = Path(tempfile.mkdtemp(prefix="stepforge-bench."))
    try:
        command = [options.program, "train", toml, f"run_dir={folder / 'run'}", *overrides]
        _, began, resident = measured(command, environment(threads))
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        return {
            "step_seconds": [step["time_metrics/end_to_end(s)"] for step in steps],
            "losses": [step["loss_metrics/global_avg_loss"] for step in steps],
            "first_step_end": steps[0]["wall_time"] - began,
            "peak_bytes": resident,
        }
    finally:
        shutil.rmtree(folder)


def run_peer(options, name, toml, overrides, threads):
    # Compiled in every run: a warm cache would hide the compile time.
    more = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"} if name.startswith("compile") else {}
    command = [options.python, HERE / "peer.py", name, toml, *overrides]
    output, began, resident = measured(command, environment(threads, name.endswith("-tuned"), **more))
    result = json.loads(output.splitlines()[-1])
    result["first_step_end"] = result.pop("first_end") - began
    return {**result, "peak_bytes": resident}


def run(options, name, *work):
    touch_memory()
    return run_stepforge(options, *work) if name == "stepforge" else run_peer(options, name, *work)


def summarize(runs, tokens, flops, rate):
    warm = [run["step_seconds"][WARMUP_STEPS:] for run in runs]
    every = [second for run in warm for second in run]
    medians = [statistics.median(run) for run in warm]
    return {
        "best_tps": tokens / min(every),
        "median_tps": tokens / statistics.median(every),
        "peak_share": flops / statistics.median(every) / rate,
        "peak_mib": max(run["peak_bytes"] for run in runs) / 2**20,
        "first_step_s": min(run["first_step_end"] for run in runs),
        "noise": max(medians) / min(medians) - 1.0,
        "rounds": len(runs),
    }


def print_table(title, table, rate):
    print(f"\n{title}; the processor does {rate / 1e9:.0f} GFLOP/s")
    print(f"{'':18}{'tok/s best':>11}{'median':>9}{'of peak':>9}{'peak MiB':>10}{'s to end of step 1':>20}{'noise':>8}")
    for name, row in table.items():
        print(
            f"{NAMES[name]:18}{row['best_tps']:11.0f}{row['median_tps']:9.0f}{row['peak_share']:9.1%}{row['peak_mib']:10.0f}"
            f"{row['first_step_s']:20.2f}{row['noise']:8.1%}"
        )
    ours = table["stepforge"]
    for name, row in table.items():
        if name != "stepforge":
            print(
                f"Stepforge against {NAMES[name]}: speed x {ours['median_tps'] / row['median_tps']:.2f} (best step x "
                f"{ours['best_tps'] / row['best_tps']:.2f}), memory x {ours['peak_mib'] / row['peak_mib']:.2f}, time to the end of "
                f"step 1 x {ours['first_step_s'] / row['first_step_s']:.2f}"
            )
    print_noise(table.values())


def print_noise(rows):
    """What the rows' measurements can tell apart."""
    if any(row["rounds"] == 1 for row in rows):
        print("Noise: unknown, run at least two rounds.", flush=True)
        return
    floor = max(row["noise"] for row in rows)
    print(f"Noise: the medians of one program's rounds differ by up to {floor:.1%}; ratios closer to 1 than that mean nothing.", flush=True)


def peers_of(options, config):
    """Only transformers has other families than Llama; only those with experts compute experts in two ways."""
    dense = config["model"]["family"] == "llama"
    return [name for name in options.peers if (name != "hf-eager" if dense else name.startswith("hf"))]


def bench_model(options, model):
    toml, bf16 = HERE / f"{model.removesuffix('_bf16')}.toml", model.endswith("_bf16")
    overrides = [*(['precision.compute="bf16"'] if bf16 else []), *options.set]
    config = configuration(toml, overrides)
    threads = config["training"]["threads"]
    tokens, flops = work_of(config)
    rates, runs = [], {name: [] for name in ["stepforge", *peers_of(options, config)]}
    for number in range(1, options.rounds + 1):
        highest = peak(threads)
        rates.append(bf16 and highest["bf16"] or highest["fp32"])
        for name in runs:
            print(f"{model}: round {number} of {options.rounds}: {NAMES[name]}", file=sys.stderr, flush=True)
            runs[name].append(run(options, name, toml, overrides, threads))
    rate = max(rates)
    table = {name: summarize(list_of_runs, tokens, flops, rate) for name, list_of_runs in runs.items()}
    m = config["model"]
    print_table(f"{model}: {m['n_layers']} layers, width {m['dim']}, {tokens} tokens per step", table, rate)
    return {"peak": rate, "rounds": options.rounds, "summary": table, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="a python with torch and transformers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=lambda text: text.split(","), default=PEERS)
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="of Stepforge and its peers")
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    print_machine()
    results = {model: bench_model(options, model) for model in options.models}
    results = {"processor": processor(), "commit": commit(), **results}
    target = options.output / time.strftime("%Y%m%d-%H%M%S.json")
    target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nAll steps of all runs: {target}")


if __name__ == "__main__":
    main()
