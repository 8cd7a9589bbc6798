#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the sums and gathers of Stepforge's engines with those of PyTorch's Gloo, in turn, on one machine.

    tools/bench/collectives.py --program build/release/bench_collectives --python VENV/bin/python [--ranks 2,4] [--rounds 3]

fp32, median of seven calls that all ranks begin together. Noise is the spread of the rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from ranks import free_port

ENGINES = {"Stepforge, Gloo": "gloo", "Stepforge, shared memory": "shared_memory", "PyTorch, Gloo": None}
KINDS, SIZES, CALLS, WARMUP = ("all_reduce", "reduce_scatter", "all_gather"), (64 << 10, 1 << 20, 32 << 20), 7, 2


def peer():
    """One rank of PyTorch."""
    import time

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for size in SIZES:
        whole = torch.zeros(size // 4)
        part = torch.zeros(size // 4 // dist.get_world_size())
        calls = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        }
        for kind in KINDS:
            times = []
            for _ in range(WARMUP + CALLS):
                dist.barrier()
                began = time.perf_counter()
                calls[kind]()
                dist.barrier()
                times.append(1000 * (time.perf_counter() - began))
            if dist.get_rank() == 0:
                print(json.dumps({"collective": kind, "bytes": size, "ms": statistics.median(times[WARMUP:])}))
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in ranks_peer.py


def run(options, engine, ranks, run_id):
    """(collective, bytes) -> milliseconds."""
    backend = ENGINES[engine]
    command = [options.program, backend] if backend else [options.python, __file__, "--peer"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": run_id, "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        sys.exit(f"{engine} failed")
    lines = [json.loads(line) for line in outputs[0].splitlines()]
    return {(line["collective"], line["bytes"]): line["ms"] for line in lines}


def bench(options, ranks):
    rounds = {engine: [] for engine in ENGINES}
    for number in range(options.rounds):
        for engine in ENGINES:
            rounds[engine].append(run(options, engine, ranks, f"bench-{os.getpid()}-{ranks}-{number}-{len(rounds[engine])}-{ENGINES[engine]}"))
    print(f"\n{ranks} ranks, milliseconds")
    print(f"{'':16}{'bytes':>10}" + "".join(f"{engine:>26}" for engine in ENGINES) + f"{'PyTorch / ours, Gloo':>22}{'noise':>8}")
    for size in SIZES:
        for kind in KINDS:
            medians = {engine: statistics.median(values[kind, size] for values in runs) for engine, runs in rounds.items()}
            noise = max(max(v[kind, size] for v in runs) / min(v[kind, size] for v in runs) - 1.0 for runs in rounds.values())
            ratio = medians["PyTorch, Gloo"] / medians["Stepforge, Gloo"]
            print(f"{kind:16}{size:>10}" + "".join(f"{medians[engine]:26.3f}" for engine in ENGINES) + f"{ratio:22.2f}{noise:8.0%}")


def main():
    if sys.argv[1:] == ["--peer"]:
        return peer()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="a python with torch")
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for ranks in options.ranks:
        bench(options, ranks)


if __name__ == "__main__":
    main()
