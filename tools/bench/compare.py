#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Stepforge and its peers in turn on the same work and compares them.

    tools/bench/compare.py --program build/release/stepforge --python VENV/bin/python [--rounds 3] [--peers eager,compile,hf]
                           [--models small,large,qwen3_moe,deepseek_v3] [--output build/bench]

Every program runs alone, in the same order in each round, so that a slow minute of the machine affects all of them. The first two
steps are not counted. Speed is that of the best and the median step of all rounds. Noise is the spread of the rounds' medians of
one program: a smaller difference between two programs means nothing.
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
import tomllib
from pathlib import Path

from work import work_of

HERE = Path(__file__).resolve().parent
WARMUP_STEPS = 2
NAMES = {"stepforge": "Stepforge", "eager": "PyTorch eager", "compile": "torch.compile", "hf": "transformers"}


def measured(command, environment):
    """Output, start time and peak resident bytes of a process."""
    began = time.time()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, stdin=subprocess.DEVNULL)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"{' '.join(map(str, command))} failed:\n{output}{errors.read()}")
    return output, began, usage.ru_maxrss * 1024


def run_stepforge(options, toml, threads):
    folder = Path(tempfile.mkdtemp(prefix="stepforge-bench."))
    try:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        _, began, peak = measured([options.program, "train", toml, f"run_dir={folder / 'run'}"], environment)
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        return {
            "step_seconds": [step["time_metrics/end_to_end(s)"] for step in steps],
            "losses": [step["loss_metrics/global_avg_loss"] for step in steps],
            "first_step_end": steps[0]["wall_time"] - began,
            "peak_bytes": peak,
        }
    finally:
        shutil.rmtree(folder)


def run_peer(options, kind, toml, threads):
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if kind == "compile":
        # Compiled in every run: a warm cache would hide the compile time.
        environment["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    output, began, peak = measured([options.python, HERE / "peer.py", kind, toml], environment)
    result = json.loads(output.splitlines()[-1])
    if "first_end" in result:
        result["first_step_end"] = result.pop("first_end") - began
    return {**result, "peak_bytes": peak}


def summarize(runs, tokens, flops, rate):
    warm = [run["step_seconds"][WARMUP_STEPS:] for run in runs]
    every = [second for run in warm for second in run]
    medians = [statistics.median(run) for run in warm]
    return {
        "best_tps": tokens / min(every),
        "median_tps": tokens / statistics.median(every),
        "matrix_share": flops / statistics.median(every) / rate,
        "peak_mib": max(run["peak_bytes"] for run in runs) / 2**20,
        "first_step_s": min(run["first_step_end"] for run in runs),
        "noise": max(medians) / min(medians) - 1.0,
        "medians_s": medians,
    }


def print_table(title, table, rate):
    print(f"\n{title}; PyTorch reaches {rate / 1e9:.1f} GFLOP/s on the model's matrix products alone")
    print(f"{'':16}{'tok/s best':>11}{'median':>9}{'of matrix rate':>22}{'peak MiB':>10}{'s to end of step 1':>20}{'noise':>8}")
    for name, row in table.items():
        print(
            f"{NAMES[name]:16}{row['best_tps']:11.0f}{row['median_tps']:9.0f}{row['matrix_share']:21.0%} {row['peak_mib']:10.0f}"
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
    if len(ours["medians_s"]) == 1:
        print("Noise: unknown, run at least two rounds.")
        return
    floor = max(row["noise"] for row in table.values())
    print(f"Noise: the medians of one program's rounds differ by up to {floor:.1%}; ratios closer to 1 than that mean nothing.")


def bench_model(options, model):
    toml = HERE / f"{model}.toml"
    with open(toml, "rb") as file:
        config = tomllib.load(file)
    threads = config["training"]["threads"]
    tokens, flops = work_of(config)
    # Only transformers has other families than Llama.
    peers = [name for name in options.peers if name == "hf" or config["model"]["family"] == "llama"]
    rates, runs = [], {name: [] for name in ["stepforge", *peers]}
    for number in range(1, options.rounds + 1):
        rates.append(run_peer(options, "matrix", toml, threads)["matrix_flops"])
        for name in runs:
            print(f"{model}: round {number} of {options.rounds}: {NAMES[name]}", file=sys.stderr, flush=True)
            run = run_stepforge(options, toml, threads) if name == "stepforge" else run_peer(options, name, toml, threads)
            runs[name].append(run)
    rate = max(rates)
    table = {name: summarize(list_of_runs, tokens, flops, rate) for name, list_of_runs in runs.items()}
    print_table(f"{model}: {config['model']['n_layers']} layers, width {config['model']['dim']}, {tokens} tokens per step", table, rate)
    return {"matrix_flops": rate, "rounds": options.rounds, "summary": table, "runs": runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="a python with torch and transformers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=lambda text: text.split(","), default=["eager", "compile", "hf"])
    parser.add_argument("--models", type=lambda text: text.split(","), default=["small", "large", "qwen3_moe", "deepseek_v3"])
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    results = {model: bench_model(options, model) for model in options.models}
    target = options.output / time.strftime("%Y%m%d-%H%M%S.json")
    target.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nAll steps of all runs: {target}")


if __name__ == "__main__":
    main()
