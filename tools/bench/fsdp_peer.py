#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a training run with PyTorch FSDP2 over Gloo, the peer in tools/bench/ranks.py.

    RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… tools/bench/fsdp_peer.py CONFIG.toml ROWS STEPS

Every block and the root are units; fp32, clip_grad_norm_, fused AdamW. Prints one JSON line.
"""
import json
import os
import resource
import sys
import time
import tomllib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from peer import Llama


def main():
    with open(sys.argv[1], "rb") as file:
        config = tomllib.load(file)
    rows, steps = int(sys.argv[2]), int(sys.argv[3])
    m, training, optimizer = config["model"], config["training"], config["optimizer"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Llama(m, training["seq_len"])
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    update = torch.optim.AdamW(
        model.parameters(), lr=optimizer["lr"], betas=(0.9, 0.95), weight_decay=optimizer["weight_decay"], fused=True
    )
    generator = torch.Generator().manual_seed(1 + rank)
    seconds, first_end = [], None
    for _ in range(steps):
        tokens = torch.randint(0, m["vocab_size"], (rows // world, training["seq_len"] + 1), generator=generator)
        began = time.perf_counter()
        loss = F.cross_entropy(model(tokens[:, :-1]).reshape(-1, m["vocab_size"]), tokens[:, 1:].reshape(-1))
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
