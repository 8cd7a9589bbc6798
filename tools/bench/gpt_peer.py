#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 in PyTorch, and nanoGPT's recipe with it: the peers of `make bench-yardsticks`.

    tools/bench/gpt_peer.py gpt|llama CONFIG.toml TRAIN.txt VALIDATION.txt [section.key=value...]

gpt: GPT-2's block with a token per character, as in the recipe. llama: the model that Stepforge trains, with a token per byte. The loop is
the recipe's: rows at random places of the text, evaluations of random rows, a checkpoint whenever the loss has fallen. Prints a line of
JSON for each evaluation: the step, the loss, the time of day, and the largest resident size so far.
"""
import json
import math
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from work import configuration


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim, bias=False), nn.LayerNorm(dim, bias=False)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        rows, length, dim = x.shape
        q, k, v = (y.view(rows, length, self.heads, -1).transpose(1, 2) for y in self.qkv(self.attention_norm(x)).split(dim, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, dim))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Gpt(nn.Module):
    """The embedding is the head too."""

    def __init__(self, m, seq_len):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(m["vocab_size"], m["dim"]), nn.Embedding(seq_len, m["dim"])
        self.blocks = nn.ModuleList(Block(m["dim"], m["n_heads"]) for _ in range(m["n_layers"]))
        self.norm = nn.LayerNorm(m["dim"], bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * m["n_layers"]) if deep else 0.02)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def read_tokens(kind, train, validation):
    """Both texts as numbers, and how many there are."""
    texts = [Path(path).read_bytes() for path in (train, validation)]
    if kind == "gpt":
        characters = {character: i for i, character in enumerate(sorted(set("".join(text.decode() for text in texts))))}
        return [torch.tensor([characters[c] for c in text.decode()]) for text in texts], len(characters)
    return [torch.tensor(list(text)) for text in texts], 257


def make_model(kind, m, seq_len):
    if kind == "gpt":
        return Gpt(m, seq_len)
    from peer import Llama

    model = Llama(m, seq_len)
    model.head.weight = model.embedding.weight
    return model


def learning_rate(step, config):
    optimizer, schedule, steps = config["optimizer"], config["lr_scheduler"], config["training"]["steps"]
    warmup, least = schedule["warmup_steps"], schedule["min_lr_factor"]
    if step < warmup:
        return optimizer["lr"] * (step + 1) / (warmup + 1)
    part = (step - warmup) / (steps - warmup)
    return optimizer["lr"] * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * part)))


def train(kind, config, paths):
    (text, held_out), config["model"]["vocab_size"] = read_tokens(kind, *paths)
    training, optimizer, validation = config["training"], config["optimizer"], config["validation"]
    rows, length = training["local_batch_size"], training["seq_len"]
    model = make_model(kind, config["model"], length)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": optimizer["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    update = torch.optim.AdamW(groups, lr=optimizer["lr"], betas=(0.9, optimizer["beta2"]), fused=True)

    def loss_of(tokens):
        places = torch.randint(len(tokens) - length, (rows,)).tolist()
        batch = torch.stack([tokens[place : place + length + 1] for place in places])
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    lowest = math.inf
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, training["steps"] + 1):
            for group in update.param_groups:
                group["lr"] = learning_rate(step - 1, config)
            loss_of(text).backward()
            nn.utils.clip_grad_norm_(model.parameters(), training["max_norm"])
            update.step()
            update.zero_grad(set_to_none=True)
            if step % validation["freq"] > 0:
                continue
            with torch.no_grad():
                loss = sum(loss_of(held_out).item() for _ in range(validation["steps"])) / validation["steps"]
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"step": step, "loss": loss, "wall_time": time.time(), "peak_bytes": resident}), flush=True)
            if loss < lowest:
                lowest = loss
                torch.save({"model": model.state_dict(), "optimizer": update.state_dict()}, Path(folder) / "checkpoint.pt")


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    kind, toml, train_path, validation_path, *overrides = sys.argv[1:]
    config = configuration(toml, overrides)
    torch.set_num_threads(config["training"]["threads"])
    torch.manual_seed(1337)
    train(kind, config, (train_path, validation_path))


if __name__ == "__main__":
    main()
