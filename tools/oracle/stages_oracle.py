#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares twenty training steps of pipelines with PyTorch's `torch.distributed.pipelining` over Gloo, in fp32, for each schedule.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/stages_oracle.py STEPFORGE

The peer's ranks are processes of this script: each has its stages of a transformers model, which the schedule class of PyTorch runs.
The loss of a micro-batch is its sum over labels divided by the labels of the step, and gradients are not scaled. A tied embedding
on two ranks has the sum of both gradients. The comparison and its tolerances are those of train_oracle.py. Exit code 1 with the
differences.
"""
import json

import torch
import torch.distributed as dist
from fsdp_oracle import ROWS, compare_with_peers, run_oracle
from safetensors.torch import save_file
from schedule_oracle import SCHEDULES, V_SHAPED, has_one_stage
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from train_oracle import LENGTH, MAX_NORM, adamw, make_letters, tokens_of_step
from transformers import AutoModelForCausalLM

MICRO_BATCHES = 8
# Larger than usual: of the weights of eight layers one or two have a first gradient no larger than its rounding, which AdamW would make
# a whole step of.
EPSILON = 1e-6
FAMILIES = ["llama", "qwen3, tied", "qwen3", "llama, tied"]
# (model, ranks, schedule)
LAYOUTS = [(FAMILIES[(number + ranks // 2) % 4], ranks, name) for ranks in (2, 4) for number, name in enumerate(SCHEDULES)]


def stages_of(schedule, rank, ranks):
    """The stages that a rank has, and their number in all."""
    if has_one_stage(schedule):
        return [rank], ranks
    return [rank, 2 * ranks - 1 - rank if schedule in V_SHAPED else rank + ranks], 2 * ranks


class Stage(torch.nn.Module):
    """Some consecutive layers of the model, with the embedding if they are the first, with the head if they are the last."""

    def __init__(self, model, stage, stages):
        super().__init__()
        layers = torch.arange(len(model.model.layers)).tensor_split(stages)[stage]
        self.embedding = model.model.embed_tokens if stage == 0 else torch.nn.Identity()
        self.layers = torch.nn.ModuleList(model.model.layers[layer] for layer in layers)
        self.head = torch.nn.Sequential(model.model.norm, model.lm_head) if stage == stages - 1 else torch.nn.Identity()
        self.rotary = model.model.rotary_emb

    def forward(self, x):
        x = self.embedding(x)
        positions = torch.arange(LENGTH)[None]
        mask = torch.full((1, 1, LENGTH, LENGTH), float("-inf")).triu(1)
        rotations = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=rotations)
        return self.head(x)


class GlooStage(PipelineStage):
    def _get_init_p2p_neighbors_ops(self):
        """None: Gloo needs none, and the two stages at the bottom of a V would send to their own rank, which it cannot."""
        return []


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (ROWS * LENGTH)


def make_schedule(name, stages, numbers, count):
    made = [GlooStage(stage, number, count, torch.device("cpu")) for stage, number in zip(stages, numbers, strict=True)]
    return get_schedule_class(name)(made[0] if has_one_stage(name) else made, MICRO_BATCHES, loss_fn=loss_of, scale_grads=False)


def summed(value):
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def clip(stages, counted, tied):
    """Sums the gradients of a tied weight over its ranks and clips those of all ranks. `counted`: this rank's part of the norm."""
    if tied is not None:
        tied.grad = torch.zeros_like(tied) if tied.grad is None else tied.grad
        dist.all_reduce(tied.grad)
    norm = summed(sum(parameter.grad.double().square().sum().item() for parameter in counted)) ** 0.5
    for parameter in stages.parameters():
        parameter.grad.mul_(min(1.0, MAX_NORM / (norm + 1e-6)))
    return norm


def peer(folder, name, rates):
    """One rank, started by run_oracle; rank 0 writes losses, norms and all weights into the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager").train()
    tied = model.lm_head.weight if model.config.tie_word_embeddings else None
    numbers, count = stages_of(name, rank, ranks)
    stages = torch.nn.ModuleList(Stage(model, number, count) for number in numbers)
    schedule = make_schedule(name, stages, numbers, count)
    own = {id(parameter) for parameter in stages.parameters()}
    if 0 not in numbers:
        own.discard(id(tied))
    weights = {key: parameter for key, parameter in model.named_parameters() if id(parameter) in own}
    update = adamw(stages, EPSILON)
    letters = make_letters(ROWS)
    results = []
    for step, rate in enumerate(rates):
        for group in update.param_groups:
            group["lr"] = rate
        tokens, losses = tokens_of_step(letters, step, ROWS), []
        schedule.step(
            *[tokens[:, :-1].contiguous()] * (0 in numbers), target=tokens[:, 1:] if count - 1 in numbers else None, losses=losses,
            return_outputs=False,
        )  # fmt: skip
        norm = clip(stages, weights.values(), tied)
        update.step()
        model.zero_grad()
        results.append((summed(sum(loss.item() for loss in losses)), norm))
    parts = [None] * ranks if rank == 0 else None
    dist.gather_object({key: parameter.detach().clone() for key, parameter in weights.items()}, parts)
    if rank == 0:
        save_file({key: tensor for part in parts for key, tensor in part.items()}, folder / "peer.safetensors")
        (folder / "peer.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def check(program, seed, name, ranks, schedule):
    return compare_with_peers(__file__, program, seed, name, ranks, schedule, f"{ranks} ranks, {schedule}", [
        f"training.local_batch_size={ROWS // MICRO_BATCHES}", f"parallelism.pipeline_parallel_degree={ranks}",
        f"parallelism.pipeline_parallel_schedule={schedule}", f"optimizer.eps={EPSILON}",
    ], num_hidden_layers=8)  # fmt: skip


if __name__ == "__main__":
    run_oracle(__doc__, peer, check, LAYOUTS)
