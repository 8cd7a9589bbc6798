#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares twenty training steps with spread experts with a loop in plain PyTorch over Gloo and with transformers, in fp32.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/experts_oracle.py STEPFORGE

The peer's ranks are processes of this script, which train expert_model.py (Qwen3-MoE without a pipeline) on their rows from the same
Hugging Face folder. The loop of transformers, for every layout, is one process with all rows. The comparison and its tolerances are those of train_oracle.py. Exit code 1 with the
differences.
"""
import functools
import json
import sys
import tempfile
import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
from expert_model import ExpertModel, Experts
from export_oracle import SIZES
from fsdp_oracle import MICRO_BATCHES, ROWS, launch_steps, run_oracle, run_processes
from safetensors.torch import load_file, save_file
from train_oracle import MAX_NORM, adamw, compare, make_letters, pytorch_steps, tokens_of_step, write_inputs

# Rounding could make the other choice between experts whose logits differ by less.
LEAST_GAP = 2e-5
SEED = 1  # of the weights: no difference is below 6e-5 in any step
# (model, ranks, ranks over which experts are spread, stages of a pipeline)
LAYOUTS = [
    ("qwen3_moe", 2, 2, 1), ("qwen3_moe", 4, 4, 1), ("qwen3_moe", 4, 2, 1), ("qwen3_moe", 4, 2, 2), ("mixtral", 4, 4, 1),
    ("qwen2_moe", 4, 4, 1), ("qwen2_moe", 4, 2, 2), ("deepseek_v3", 4, 2, 2),
]  # fmt: skip


def watch_gaps(model):
    """The list that gets, with each call of a router, the least difference between the last logit that was chosen and the next one."""
    gaps = []

    def note(chosen, router, inputs, logits):
        best = logits.topk(chosen + 1).values
        gaps.append((best[:, -2] - best[:, -1]).min().item())

    for module in model.modules():
        if isinstance(module, Experts):
            module.gate.register_forward_hook(functools.partial(note, module.chosen))
    return gaps


def peer(folder, degree, rates):
    """One rank, started by run_processes; rank 0 writes losses, norms and all weights into the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = ExpertModel(tomllib.loads((folder / "run.toml").read_text())["model"], degree)
    stored = load_file(folder / "model/model.safetensors")
    model.load_state_dict({name: stored[name] for name in model.state_dict()})
    update, gaps = adamw(model), watch_gaps(model)
    letters = make_letters(ROWS)
    results = []
    for step, rate in enumerate(rates):
        for group in update.param_groups:
            group["lr"] = rate
        tokens = tokens_of_step(letters, step, ROWS).chunk(ranks)[rank]
        loss, norm = model.step(tokens[:, :-1], tokens[:, 1:], ROWS, MAX_NORM)
        update.step()
        update.zero_grad()
        total = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(total)
        results.append((total.item(), norm))
    least = torch.tensor(min(gaps))
    dist.all_reduce(least, dist.ReduceOp.MIN)
    if least < LEAST_GAP:
        sys.exit(f"the logits of two experts of a token differ by {least:.1e}: choose another SEED")
    parts = [None] * ranks if rank == 0 else None
    dist.gather_object({name: parameter.detach() for name, parameter in model.named_parameters()}, parts)
    if rank == 0:
        save_file({name: tensor for part in parts for name, tensor in part.items()}, folder / "peer.safetensors")
        (folder / "peer.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def check(program, _, name, ranks, degree, stages):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, letters = write_inputs(folder, name, SEED, ROWS, num_experts_per_tok=3, **SIZES[name])
        steps, weights = launch_steps(program, folder, ranks, [
            f"training.local_batch_size={ROWS * stages // ranks // MICRO_BATCHES}", f"parallelism.expert_parallel_degree={degree}",
            f"parallelism.pipeline_parallel_degree={stages}",
        ])  # fmt: skip
        rates = [step["lr"] for step in steps]
        label = f"{name}, {ranks} ranks, ep {degree}" + (f", pp {stages}" if stages > 1 else "")
        good = []
        if name == "qwen3_moe" and stages == 1:
            good.append(compare(label, steps, weights, *run_processes(__file__, folder, ranks, degree, rates)))
        peers = *pytorch_steps(model.train(), letters, rates, ROWS), model.state_dict()
        good.append(compare(label + ", transformers", steps, weights, *peers))
        return good.count(False)


if __name__ == "__main__":
    run_oracle(__doc__, peer, check, LAYOUTS)
