#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The models of `stepforge gpu-check` in PyTorch, with torch.compile and bf16 autocast: the peer of its stage "models".

    tools/bench/gpu_peer.py SIZES.json DEVICE    prints one JSON line; SIZES.json is what gpu-check writes, DEVICE is cuda or cpu

The same work: fp32 weights and AdamW (fused), bf16 products, the micro-batches and rows of the sizes, clipping, cross-entropy over all
tokens. Recomputation where the sizes ask for it.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from peer import Llama


class RecomputedBlock(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x, cos, sin):
        return checkpoint(self.block, x, cos, sin, use_reentrant=False)


def with_bias(linear):
    return nn.Linear(linear.in_features, linear.out_features, bias=True)


def make_model(m):
    if m["head_dim"] * m["n_heads"] != m["dim"]:
        sys.exit(f"{m['name']}: the peer has heads of dim / n_heads elements, not {m['head_dim']}")
    model = Llama(m, m["seq_len"])
    if m["tie_embeddings"]:
        model.head.weight = model.embedding.weight
    for block in model.blocks:
        if m["qkv_bias"]:
            a = block.attention
            a.wq, a.wk, a.wv = (with_bias(w) for w in (a.wq, a.wk, a.wv))
    if m["recompute"]:
        model.blocks = nn.ModuleList(RecomputedBlock(block) for block in model.blocks)
    return model


def step(model, update, m, tokens, device):
    for _ in range(m["micro_batches"]):
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, m["vocab_size"]), tokens[:, 1:].reshape(-1)) / m["micro_batches"]
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    update.step()
    update.zero_grad(set_to_none=True)
    return loss.item()  # waits for the device, as a log line does


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        m = json.load(file)
    device = torch.device(sys.argv[2])
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")
    torch.manual_seed(0)
    with device:
        model = make_model(m)
        tokens = torch.randint(0, m["vocab_size"], (m["rows_per_micro_batch"], m["seq_len"] + 1))
    compiled = torch.compile(model)
    update = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(m["steps"]):
        began = time.perf_counter()
        step(compiled, update, m, tokens, device)
        seconds.append(time.perf_counter() - began)
    steady = seconds[m["warm_up_steps"] :]
    of_step = m["micro_batches"] * m["rows_per_micro_batch"] * m["seq_len"]
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    print(json.dumps({
        "tokens_per_second": of_step * len(steady) / sum(steady), "step_seconds": sum(steady) / len(steady),
        "first_step_seconds": seconds[0], "peak_bytes": peak, "torch": torch.__version__,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
