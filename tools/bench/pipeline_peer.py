# SPDX-License-Identifier: Apache-2.0
"""The pipelines of tools/bench/ranks_peer.py: stages of peer.Llama in a schedule of torch.distributed.pipelining."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from peer import Llama


def make_stage(m, length, number, count):
    """Every stage has as many layers as the others; the first one also has the embedding, the last one the head."""
    stage = Llama({**m, "n_layers": m["n_layers"] // count}, length)
    if number > 0:
        stage.embedding = nn.Identity()
    if number < count - 1:
        stage.norm, stage.head = nn.Identity(), nn.Identity()
    return stage


class Pipeline(nn.Module):
    """The stages of this rank. A micro-batch is a row."""

    def __init__(self, name, m, rows, length):
        super().__init__()
        kind = get_schedule_class(name)
        single = issubclass(kind, PipelineScheduleSingle)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        count = ranks if single else 2 * ranks
        numbers = range(rank, count, ranks)
        self.first, self.last = 0 in numbers, count - 1 in numbers
        self.stages = nn.ModuleList(make_stage(m, length, number, count) for number in numbers)
        made = [PipelineStage(stage, number, count, torch.device("cpu")) for stage, number in zip(self.stages, numbers, strict=True)]

        def loss_of(logits, labels):
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (rows * length)

        self.schedule = kind(made[0] if single else made, rows, loss_fn=loss_of, scale_grads=False)

    def step(self, inputs, labels, max_norm):
        """Gradients, clipped by the norm of all ranks; returns the loss on the rank that has it."""
        losses = []
        given = [inputs.contiguous()] if self.first else []
        self.schedule.step(*given, target=labels if self.last else None, losses=losses, return_outputs=False)
        gradients = [parameter.grad for parameter in self.parameters()]
        norm = nn.utils.get_total_norm(gradients).square()
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm.sqrt())
        return sum(loss.item() for loss in losses)
