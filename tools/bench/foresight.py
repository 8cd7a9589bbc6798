#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the step time and memory that `stepforge plan` predicts for pipelines with those of runs on this machine.

    tools/bench/foresight.py --program build/release/stepforge [--stages 2,4] [--rounds 3] [--cores N]

One rank trains the whole model; the trace of a step is the cost model (`plan --calibrate`), and says which share of that step no
operation of the compute lane ran or was waited for: the overhead of the executor. Then every schedule is predicted and run, with one
thread per rank. The measured time is the median of all steps after the first ones, memory that of the tensors of rank 0.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from compare import WARMUP_STEPS, measured

HERE = Path(__file__).resolve().parent
SCHEDULES = ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
MICRO_BATCHES = 8
SETTINGS = [
    "model.n_layers=8", "training.threads=1", "training.local_batch_size=1", f"training.global_batch_size={MICRO_BATCHES}",
    "training.steps=16",
]  # fmt: skip
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run(command):
    """Step times after the first ones, and the peak of tensors in bytes."""
    folder = Path(tempfile.mkdtemp(prefix="stepforge-bench."))
    try:
        measured([*command, f"run_dir={folder / 'run'}"], ENVIRONMENT)
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"][WARMUP_STEPS:]
        return [step["time_metrics/end_to_end(s)"] for step in steps], max(step["memory/max_active(GiB)"] for step in steps) * 2**30
    finally:
        shutil.rmtree(folder)


def overhead(trace):
    """The share of the measured step in which the compute lane neither ran an operation nor waited for one of another lane."""
    events = json.loads(trace.read_text())["traceEvents"]
    ran = {event["pid"] for event in events if event["name"] == "process_name" and event["args"]["name"].endswith(", ran")}
    times = {event["args"]["index"]: event for event in events if event["ph"] == "X" and event["pid"] in ran}
    end_of = {index: event["ts"] + event["dur"] for index, event in times.items()}
    free = outside = 0.0
    for index, event in sorted(times.items()):
        if event["tid"] != 0:
            continue
        ready = max([free, *[end_of[other] for other in event["args"].get("needs", [])]])
        outside += max(0.0, event["ts"] - ready)
        free = end_of[index]
    return outside / max(end_of.values())


def predicted(options, stages, settings, trace):
    command = [options.program, "plan", HERE / "small.toml", "--world-size", str(stages), "--cores", str(options.cores), "--calibrate", trace,
               *settings]  # fmt: skip
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout
    seconds = float(re.search(r"^  step: (\S+) s;", text, re.M)[1])
    amount, unit = re.search(r"^ +0 .* % +([\d.]+) (B|[KMG]iB) ", text, re.M).groups()
    return seconds, float(amount) * UNITS[unit]


def pipeline(schedule, stages):
    return [*SETTINGS, f"parallelism.pipeline_parallel_degree={stages}", f"parallelism.pipeline_parallel_schedule={schedule}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--stages", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4])
    parser.add_argument("--schedules", type=lambda text: text.split(","), default=SCHEDULES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        run([options.program, "train", HERE / "small.toml", *SETTINGS, "--trace", trace])
        print(f"executor outside operations, one rank: {overhead(trace):.2%} of a step")
        print(f"{'stages':>6}  {'schedule':22}{'predicted':>10}{'measured':>10}{'ratio':>7}{'noise':>8}{'predicted':>13}{'measured':>10}{'ratio':>7}")
        for stages in options.stages:
            for schedule in options.schedules:
                settings = pipeline(schedule, stages)
                seconds, memory = predicted(options, stages, settings, trace)
                launch = [options.program, "launch", "--nproc", str(stages), "--log-dir", Path(folder) / "logs", "train", HERE / "small.toml"]
                rounds = [run([*launch, *settings]) for _ in range(options.rounds)]
                medians = [statistics.median(times) for times, _ in rounds]
                time, peak = statistics.median(medians), max(peak for _, peak in rounds)
                print(f"{stages:6}  {schedule:22}{seconds:8.3f} s{time:8.3f} s{seconds / time:7.2f}{max(medians) / min(medians) - 1:8.1%}"
                      f"{memory / 2**20:9.1f} MiB{peak / 2**20:6.1f} MiB{memory / peak:7.3f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
