#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run in PyTorch over Gloo, the peers in tools/bench/ranks.py.

    RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… tools/bench/ranks_peer.py fsdp|tensor|context CONFIG.toml ROWS SEQ_LEN STEPS

fsdp: FSDP2, every block and the root are units. tensor: `parallelize_module` with sequence and loss parallelism, the plan that torchtitan
uses. context: PyTorch's load-balanced ring attention around its CPU attention, weights sharded with FSDP2 over the same ranks. fp32,
clip_grad_norm_, fused AdamW. Prints one JSON line.
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


def main():
    kind = sys.argv[1]
    with open(sys.argv[2], "rb") as file:
        config = tomllib.load(file)
    rows, length, steps = map(int, sys.argv[3:6])
    m, training, optimizer = config["model"], config["training"], config["optimizer"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Llama(m, length)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    own_rows, seed, positions = rows, 1, torch.arange(length)
    if kind == "fsdp":
        own_rows, seed = rows // world, 1 + rank
        shard(model, mesh)
    elif kind == "tensor":
        divide(model, mesh)
    else:
        chunks = positions.chunk(2 * world)
        positions = torch.cat((chunks[rank], chunks[2 * world - 1 - rank]))
        divide_rows(model, mesh, positions)
    update = torch.optim.AdamW(
        model.parameters(), lr=optimizer["lr"], betas=(0.9, 0.95), weight_decay=optimizer["weight_decay"], fused=kind != "tensor"
    )
    generator = torch.Generator().manual_seed(seed)
    seconds, first_end = [], None
    for _ in range(steps):
        tokens = torch.randint(0, m["vocab_size"], (own_rows, length + 1), generator=generator)
        inputs, labels = tokens[:, :-1][:, positions], tokens[:, 1:][:, positions]
        began = time.perf_counter()
        with loss_parallel() if kind == "tensor" else contextlib.nullcontext():
            loss = F.cross_entropy(model(inputs).reshape(-1, m["vocab_size"]), labels.reshape(-1))
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_norm"])
        update.step()
        update.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.perf_counter() - began)
        first_end = first_end or time.time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_seconds": seconds, "first_end": first_end, "peak_bytes": peak}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
