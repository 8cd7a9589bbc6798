#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares twenty training steps of `stepforge launch` with PyTorch FSDP2 over Gloo: same weights, tokens, rates, fp32.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/fsdp_oracle.py STEPFORGE

The peer's ranks are processes of this script. Every layer and the root are units (`fully_shard`); gradients are accumulated over
two micro-batches and reduced with the second one. The comparison and its tolerances are those of train_oracle.py. Exit code 1 with
the differences.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.fsdp import fully_shard
from train_oracle import MAX_NORM, adamw, compare, make_letters, stepforge_steps, tokens_of_step, write_inputs
from transformers import AutoModelForCausalLM
from transformers.utils import logging

ROWS, MICRO_BATCHES = 24, 2
# (model, ranks, replicas)
LAYOUTS = [("llama", 2, 1), ("qwen3, tied", 2, 1), ("qwen3", 3, 1), ("llama, tied", 4, 1), ("qwen3", 4, 2)]


def peer_mesh(ranks, replicas):
    if replicas == 1:
        return dist.init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",))
    return dist.init_device_mesh("cpu", (replicas, ranks // replicas), mesh_dim_names=("replicate", "shard"))


def peer_step(model, update, tokens):
    """The rank's mean loss and the gradient norm. FSDP2 averages gradients over the ranks, which have equal numbers of labels."""
    total = 0.0
    for number, micro in enumerate(tokens.chunk(MICRO_BATCHES)):
        model.set_requires_gradient_sync(number == MICRO_BATCHES - 1)
        logits = model(micro[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), micro[:, 1:].flatten()) / MICRO_BATCHES
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    update.step()
    update.zero_grad()
    return total, norm.full_tensor().item()


def peer(folder, replicas, rates):
    """One rank, started by run_processes; rank 0 writes losses, norms and whole weights into the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager").train()
    mesh = peer_mesh(ranks, replicas)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    update = adamw(model)
    letters = make_letters(ROWS)
    results = []
    for step, rate in enumerate(rates):
        for group in update.param_groups:
            group["lr"] = rate
        loss, norm = peer_step(model, update, tokens_of_step(letters, step, ROWS).chunk(ranks)[rank])
        mean = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(mean)
        results.append((mean.item() / ranks, norm))
    weights = {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}
    if rank == 0:
        save_file(weights, folder / "peer.safetensors")
        (folder / "peer.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def run_processes(script, folder, ranks, choice, rates):
    """Runs `script --peer folder choice rates` as each of the ranks; returns what rank 0 wrote. `choice`: any JSON value."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "WORLD_SIZE": str(ranks)}  # fmt: skip
    command = [sys.executable, script, "--peer", folder, json.dumps(choice), json.dumps(rates)]
    processes = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(ranks)]
    if any([process.wait() != 0 for process in processes]):
        sys.exit("the peer failed")
    losses, norms = zip(*json.loads((folder / "peer.json").read_text()), strict=True)
    return losses, norms, load_file(folder / "peer.safetensors")


def launch_steps(program, folder, ranks, settings):
    """Trains what write_inputs wrote into the folder on `ranks` ranks; returns what stepforge_steps does."""
    return stepforge_steps(program, folder, [
        "launch", "--nproc", str(ranks), "--log-dir", folder / "logs", "train", folder / "run.toml",
        f"training.global_batch_size={ROWS}", "training.threads=1", *settings,
    ])  # fmt: skip


def compare_with_peers(script, program, seed, name, ranks, choice, label, settings, **sizes):
    """Trains the model on `ranks` ranks with `settings` and with the peers of `script`, which get `choice`; returns the number of
    differing runs. `sizes`: other than train_oracle.SIZES."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_inputs(folder, name, seed, ROWS, **sizes)
        steps, weights = launch_steps(program, folder, ranks, settings)
        peers = run_processes(script, folder, ranks, choice, [step["lr"] for step in steps])
        return 0 if compare(f"{name}, {label}", steps, weights, *peers) else 1


def run_oracle(usage, peer, check, layouts):
    """The main function of an oracle of several ranks: `check(program, seed, *layout)` for each layout, or one of its peers."""
    logging.disable_progress_bar()
    if len(sys.argv) == 5 and sys.argv[1] == "--peer":
        peer(Path(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4]))
        # Without PyTorch's static destructors, which abort now and then once threads of Gloo have run.
        sys.stdout.flush()
        os._exit(0)
    if len(sys.argv) != 2:
        sys.exit(usage)
    program = Path(sys.argv[1]).resolve()
    sys.exit(1 if sum(check(program, seed, *layout) for seed, layout in enumerate(layouts)) else 0)


def check(program, seed, name, ranks, replicas):
    label = f"{ranks} ranks" if replicas == 1 else f"{replicas} x {ranks // replicas} ranks"
    return compare_with_peers(__file__, program, seed, name, ranks, replicas, label, [
        f"training.local_batch_size={ROWS // ranks // MICRO_BATCHES}",
        f"parallelism.data_parallel_replicate_degree={replicas}",
    ])  # fmt: skip


if __name__ == "__main__":
    run_oracle(__doc__, peer, check, LAYOUTS)
