#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Stepforge on several ranks of one machine with PyTorch over Gloo, in turn, on the same work.

    tools/bench/ranks.py --program build/release/stepforge --python VENV/bin/python [--ranks 2,4] [--rounds 3]
                         [--kinds fsdp,tensor,context,1F1B,Interleaved1F1B,experts] [--tokens 24576]

The work is the model of tools/bench/small.toml with one thread per rank. fsdp: its eight rows per step are divided over the ranks, so
that matrix products dominate; then each rank has one row, so that communication matters more. tensor: all ranks share the eight rows,
with sequence and loss parallelism. context: each row is divided over the ranks, in a ring; then the tokens of the step are one row.
1F1B, Interleaved1F1B: eight layers in pipelines of one or two stages per rank, the same ones for both, and micro-batches of one row.
experts: the model of qwen3_moe.toml, whose experts are spread over all ranks, with the rows of fsdp; the peer is the plain loop of
tools/oracle/expert_model.py, where each rank has a copy of all else.
All read the same token ids in the same order, so that routers choose for the same tokens.

Ranks of Stepforge share memory, which is what it does on one host. PyTorch has only Gloo for the CPU, here through loopback, so a
row gives Stepforge over Gloo too. "tuned" gives the peers the MKL kernels that Stepforge has, and keeps their memory (machine.py).
With FSDP, one rank has the same rows and as many threads as there were ranks, if there are as many cores.
Memory is the peak resident size of the largest rank. Noise is the spread of the rounds of one program.
"""
import argparse
import array
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare import WARMUP_STEPS, measured, print_noise
from machine import environment, print_machine
from work import configuration

HERE = Path(__file__).resolve().parent


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


PIPELINE_LAYERS = 8  # what four ranks with two stages each need


def pipeline(name):
    return "pipelining, Gloo", lambda ranks, rows: [
        "training.local_batch_size=1", f"model.n_layers={PIPELINE_LAYERS}",
        f"parallelism.pipeline_parallel_degree={ranks}", f"parallelism.pipeline_parallel_schedule={name}",
        # Layers divide evenly, as they do for the peer.
        "parallelism.pipeline_parallel_first_stage_less_layers=0", "parallelism.pipeline_parallel_last_stage_less_layers=0",
    ]  # fmt: skip


PIPELINES = {name: pipeline(name) for name in ("1F1B", "Interleaved1F1B")}
# The peer, and Stepforge's options.
KINDS = {
    "fsdp": ("FSDP2, Gloo", lambda ranks, rows: [f"training.local_batch_size={rows // ranks}"]),
    "tensor": ("tensor, Gloo", lambda ranks, rows: [
        f"training.local_batch_size={rows}", f"parallelism.tensor_parallel_degree={ranks}",
    ]),
    "context": ("ring, Gloo", lambda ranks, rows: [
        f"training.local_batch_size={rows}", f"parallelism.context_parallel_degree={ranks}",
        "parallelism.context_parallel_method=ring",
    ]),
    **PIPELINES,
    "experts": ("plain, Gloo", lambda ranks, rows: [
        f"training.local_batch_size={rows // ranks}", f"parallelism.expert_parallel_degree={ranks}",
    ]),
}  # fmt: skip


ONE_RANK = "Stepforge, one rank"


def config_of(kind):
    return HERE / ("qwen3_moe.toml" if kind == "experts" else "small.toml")


def shapes(kind, ranks, rows, seq_len):
    """Rows per step and their length."""
    yield rows, seq_len
    if kind in ("fsdp", "experts"):
        yield ranks, seq_len
    if kind == "context":
        yield 1, rows * seq_len


def write_tokenizer(path, vocabulary):
    """A token for each byte and some more, so that token files may have all ids below `vocabulary`."""
    # Byte-level tokenizers print bytes that have no sign of their own as characters above 255.
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    names = {**{byte: chr(byte) for byte in printed}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    names.update({number: f"<{number}>" for number in range(256, vocabulary)})
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [{"id": vocabulary - 1, "content": names[vocabulary - 1], "special": True, "single_word": False,
              "lstrip": False, "rstrip": False, "normalized": False}]  # fmt: skip
    model = {"type": "BPE", "vocab": {name: number for number, name in names.items()}, "merges": []}
    path.write_text(json.dumps({"added_tokens": added, "pre_tokenizer": split, "decoder": split, "model": model}))


def write_tokens(path, vocabulary, count):
    """Token ids, 16 bits each: as in synthetic data 7 of 8 are a function of the one before, the others are random."""
    generator = random.Random(0)
    successor = list(range(vocabulary))
    generator.shuffle(successor)
    tokens = array.array("H", [0])
    while len(tokens) < count:
        tokens.append(generator.randrange(vocabulary) if generator.random() < 1 / 8 else successor[tokens[-1]])
    path.write_bytes(tokens.tobytes())


def run_stepforge(options, backend, threads, kind, ranks, rows, seq_len, steps, tokens):
    folder = Path(tempfile.mkdtemp(prefix="stepforge-bench."))
    try:
        command = [
            options.program, "launch", "--nproc", str(ranks), "--log-dir", folder / "logs", "train", config_of(kind),
            f"run_dir={folder / 'run'}", f"training.global_batch_size={rows}", f"training.steps={steps}", f"training.seq_len={seq_len}",
            f"training.threads={threads}", f"comm.backend={backend}",
            f'data.sources=[{{ path = "{tokens}", format = "tokens_u16" }}]', "data.shuffle=false",
            "tokenizer.type=hf", f"tokenizer.path={tokens.parent / 'tokenizer.json'}",
            *KINDS[kind][1](ranks, rows),
        ]  # fmt: skip
        # The launcher's peak is that of its largest rank.
        _, began, peak = measured(command, environment(threads))
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        return {
            "step_seconds": [step["time_metrics/end_to_end(s)"] for step in steps],
            "first_step_end": steps[0]["wall_time"] - began,
            "peak_bytes": peak,
        }
    finally:
        shutil.rmtree(folder)


def run_peer(options, tuned, kind, ranks, rows, seq_len, steps, tokens):
    shared = environment(1, tuned, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    began = time.time()
    processes = [
        subprocess.Popen([options.python, HERE / "ranks_peer.py", kind, config_of(kind), str(rows), str(seq_len), str(steps), tokens,
                          *[str(PIPELINE_LAYERS)] * (kind in PIPELINES)],
                         env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]  # fmt: skip
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        sys.exit(f"the {kind} peer failed")
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    first = results[0]
    return {
        "step_seconds": first["step_seconds"],
        "first_step_end": first["first_end"] - began,
        "peak_bytes": max(result["peak_bytes"] for result in results),
    }


def summarize(runs, tokens):
    medians = [statistics.median(run["step_seconds"][WARMUP_STEPS:]) for run in runs]
    return {
        "tps": tokens / statistics.median(medians),
        "peak_mib": max(run["peak_bytes"] for run in runs) / 2**20,
        "first_step_s": min(run["first_step_end"] for run in runs),
        "noise": max(medians) / min(medians) - 1.0,
        "rounds": len(runs),
    }


def programs(peer, kind, ranks):
    """A function for each row of a table."""
    rows = {
        "Stepforge": lambda options, *work: run_stepforge(options, "shared_memory", 1, *work),
        "Stepforge, Gloo": lambda options, *work: run_stepforge(options, "gloo", 1, *work),
        peer: lambda options, *work: run_peer(options, False, *work),
        f"{peer}, tuned": lambda options, *work: run_peer(options, True, *work),
    }
    if kind == "fsdp" and ranks <= (os.cpu_count() or 1):
        rows[ONE_RANK] = lambda options, kind, ranks, *work: run_stepforge(options, "shared_memory", ranks, kind, 1, *work)
    return rows


def bench(options, kind, ranks, rows, seq_len, file):
    tokens = rows * seq_len
    steps = WARMUP_STEPS + max(1, options.tokens // tokens)
    peer = KINDS[kind][0]
    runs = {name: [] for name in programs(peer, kind, ranks)}
    for number in range(1, options.rounds + 1):
        print(f"{kind}, {ranks} ranks, {rows} rows per step: round {number} of {options.rounds}", file=sys.stderr, flush=True)
        for name, run in programs(peer, kind, ranks).items():
            runs[name].append(run(options, kind, ranks, rows, seq_len, steps, file))
    table = {name: summarize(list_of_runs, tokens) for name, list_of_runs in runs.items()}
    print(f"\n{kind}: {ranks} ranks, {rows} {'row' if rows == 1 else 'rows'} of {seq_len} tokens per step")
    print(f"{'':24}{'tok/s':>8}{'peak MiB per rank':>19}{'s to end of step 1':>20}{'noise':>8}")
    for name, row in table.items():
        print(f"{name:24}{row['tps']:8.0f}{row['peak_mib']:19.0f}{row['first_step_s']:20.2f}{row['noise']:8.1%}")
    ours, over_gloo = table["Stepforge"], table["Stepforge, Gloo"]
    for name in (peer, f"{peer}, tuned"):
        row = table[name]
        print(
            f"Stepforge against {name}: speed x {ours['tps'] / row['tps']:.2f} (over Gloo x {over_gloo['tps'] / row['tps']:.2f}), memory per "
            f"rank x {ours['peak_mib'] / row['peak_mib']:.2f}, time to the end of step 1 x {ours['first_step_s'] / row['first_step_s']:.2f}"
        )
    if ONE_RANK in table:
        print(f"{ranks} ranks of one thread against one rank of {ranks} threads: speed x {ours['tps'] / table[ONE_RANK]['tps']:.2f}")
    print_noise(table.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="a python with torch")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24576, help="of a run after its first steps, so that all runs take about as long")
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="stepforge-bench.") as folder:
        for kind in options.kinds:
            config = configuration(config_of(kind))
            training, tokens = config["training"], Path(folder) / f"{kind}.bin"
            step = training["local_batch_size"] * training["seq_len"]
            write_tokenizer(tokens.parent / "tokenizer.json", config["model"]["vocab_size"])
            write_tokens(tokens, config["model"]["vocab_size"], options.tokens + (WARMUP_STEPS + 1) * step + 1)
            for ranks in options.ranks:
                for rows, seq_len in shapes(kind, ranks, training["local_batch_size"], training["seq_len"]):
                    bench(options, kind, ranks, rows, seq_len, tokens)


if __name__ == "__main__":
    main()
