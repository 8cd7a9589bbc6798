#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run in PyTorch over Gloo, the peers in tools/bench/ranks.py.

    RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… tools/bench/ranks_peer.py KIND CONFIG.toml ROWS SEQ_LEN STEPS TOKENS [LAYERS]

KIND is fsdp, tensor, context, experts, or the name of a pipeline schedule.

fsdp: FSDP2, every block and the root are units. tensor: `parallelize_module` with sequence and loss parallelism, the plan that torchtitan
uses. context: PyTorch's load-balanced ring attention around its CPU attention, weights sharded with FSDP2 over the same ranks.
experts: tools/oracle/expert_model.py. A schedule: pipeline_peer.py. fp32, clipped by the norm, fused AdamW. TOKENS: a file of
token ids of 16 bits, which are taken in order. LAYERS: other than the config's. Prints one JSON line.
"""
import contextlib
import functools
import json
import os
import resource
import sys
import time
import tomllib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)  # fmt: skip

from peer import Llama
from pipeline_peer import Pipeline

sys.path.append(str(Path(__file__).resolve().parent.parent / "oracle"))


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def divide(model, mesh):
    slices, whole = Shard(1), Replicate()
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=slices),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=slices, output_layouts=Shard(-1), use_local_output=False),
    })  # fmt: skip
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(slices, None, None), desired_input_layouts=(whole, None, None)),
            "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=slices),
            "mlp_norm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(slices,), desired_input_layouts=(whole,)),
            "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=slices),
        })  # fmt: skip


def attend_in_ring(attention, group, q, k, v):
    from context_oracle import RingAttention

    repeats = attention.heads // attention.kv_heads
    return RingAttention.apply(q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1), group, attention.head_dim**-0.5)


def divide_rows(model, mesh, positions):
    for block in model.blocks:
        block.attention.attend = functools.partial(attend_in_ring, block.attention, mesh.get_group())
    model.cos, model.sin = model.cos[positions], model.sin[positions]
    shard(model, mesh)


class Whole(torch.nn.Module):
    """A model of which each rank runs every layer, on its rows, features or positions."""

    def __init__(self, kind, m, rows, length):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.model, self.vocabulary = Llama(m, length), m["vocab_size"]
        self.context = loss_parallel if kind == "tensor" else contextlib.nullcontext
        self.rows, self.positions = slice(rows), torch.arange(length)
        mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
        if kind == "fsdp":
            self.rows = slice(rows // world * rank, rows // world * (rank + 1))
            shard(self.model, mesh)
        elif kind == "tensor":
            divide(self.model, mesh)
        else:
            chunks = self.positions.chunk(2 * world)
            self.positions = torch.cat((chunks[rank], chunks[2 * world - 1 - rank]))
            divide_rows(self.model, mesh, self.positions)

    def step(self, inputs, labels, max_norm):
        """Clipped gradients; returns the loss."""
        inputs, labels = inputs[self.rows, self.positions], labels[self.rows, self.positions]
        with self.context():
            loss = F.cross_entropy(self.model(inputs).reshape(-1, self.vocabulary), labels.reshape(-1))
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm)
        return loss.item()


class SpreadExperts(torch.nn.Module):
    """A model whose experts are spread over all ranks, which divide the rows."""

    def __init__(self, kind, m, rows, length):
        super().__init__()
        from expert_model import ExpertModel

        rank, world = dist.get_rank(), dist.get_world_size()
        self.model, self.rows = ExpertModel(m, world), rows
        self.own = slice(rows // world * rank, rows // world * (rank + 1))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=0.02)

    def step(self, inputs, labels, max_norm):
        """Clipped gradients; returns this rank's part of the loss."""
        return self.model.step(inputs[self.own], labels[self.own], self.rows, max_norm)[0]


MODELS = {"fsdp": Whole, "tensor": Whole, "context": Whole, "experts": SpreadExperts}


def main():
    kind = sys.argv[1]
    with open(sys.argv[2], "rb") as file:
        config = tomllib.load(file)
    rows, length, steps = map(int, sys.argv[3:6])
    ids = torch.from_file(sys.argv[6], size=rows * length * steps + 1, dtype=torch.uint16).long()
    layers = [int(word) for word in sys.argv[7:]]
    m, training, optimizer = config["model"], config["training"], config["optimizer"]
    if layers:
        m["n_layers"] = layers[0]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = MODELS.get(kind, Pipeline)(kind, m, rows, length)
    update = torch.optim.AdamW(
        model.parameters(), lr=optimizer["lr"], betas=(0.9, 0.95), weight_decay=optimizer["weight_decay"], fused=kind != "tensor"
    )
    seconds, first_end = [], None
    for step in range(steps):
        tokens = ids[rows * length * step :].unfold(0, length + 1, length)[:rows]
        began = time.perf_counter()
        model.step(tokens[:, :-1], tokens[:, 1:], training["max_norm"])
        update.step()
        update.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
        first_end = first_end or time.time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_seconds": seconds, "first_end": first_end, "peak_bytes": peak}))
    dist.destroy_process_group()
    # Without PyTorch's static destructors, which abort now and then once threads of Gloo have run.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
