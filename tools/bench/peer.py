#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training run in PyTorch, the same work as a Stepforge run of tools/bench: the peers of `make bench`.

    tools/bench/peer.py PEER CONFIG.toml [section.key=value...]    prints one JSON line: seconds of each step, wall-clock end of step 1

PEER is eager, compile, hf (transformers) or gpt (a GPT-2 of the same size), or one of these with a setting: eager-tuned. The threads of the config, cross-entropy over
all tokens, clip_grad_norm_, fused AdamW: the usual training loop. Settings:

- hf-eager: experts one after another, where transformers' default is grouped products.
- tuned: compare.py starts it with another malloc and MKL. With bf16, the weights of the model are bf16, and the optimizer's fp32, as
  Stepforge's are; otherwise torch.autocast, which users turn to first. With several documents in a row, attention to one after another;
  otherwise a mask of blocks. (PyTorch's flex_attention has no backward pass on the CPU.)
"""
import functools
import json
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from work import configuration


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = m["n_heads"], m["n_kv_heads"], m["dim"] // m["n_heads"]
        self.wq = nn.Linear(m["dim"], self.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(m["dim"], self.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(m["dim"], self.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(self.heads * self.head_dim, m["dim"], bias=False)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        # -1: all heads, or those of a rank.
        q, k, v = (w(x).view(rows, length, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.wo(out.transpose(1, 2).reshape(rows, length, -1))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Mlp(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.gate = nn.Linear(m["dim"], m["ffn_dim"], bias=False)
        self.up = nn.Linear(m["dim"], m["ffn_dim"], bias=False)
        self.down = nn.Linear(m["ffn_dim"], m["dim"], bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(m["dim"], m["norm_eps"]), nn.RMSNorm(m["dim"], m["norm_eps"])
        self.attention, self.mlp = Attention(m), Mlp(m)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, m, seq_len):
        super().__init__()
        self.embedding = nn.Embedding(m["vocab_size"], m["dim"])
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["n_layers"]))
        self.norm = nn.RMSNorm(m["dim"], m["norm_eps"])
        self.head = nn.Linear(m["dim"], m["vocab_size"], bias=False)
        head_dim = m["dim"] // m["n_heads"]
        frequencies = m["rope_theta"] ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(seq_len).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


# Names in config.json. Each family ignores what it does not have.
HUGGING_FACE_NAMES = {
    "dim": "hidden_size", "ffn_dim": "intermediate_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "max_position": "max_position_embeddings", "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings", "n_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok",
    "moe_ffn_dim": "moe_intermediate_size", "n_expert_groups": "n_group", "groups_per_token": "topk_group",
    "first_dense_layers": "first_k_dense_replace",
}  # fmt: skip


def hugging_face(m, setting):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {HUGGING_FACE_NAMES.get(name, name): value for name, value in m.items() if name not in ("family", "rope_theta")}
    rope = {"rope_type": "default", "rope_theta": m["rope_theta"]}
    config = AutoConfig.for_model(m["family"], **sizes, rope_parameters=rope, use_cache=False)
    experts = {"experts_implementation": "eager"} if setting == "eager" else {}
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", **experts).train()
    return model, lambda tokens: model(input_ids=tokens).logits


def peer(kind, setting, m, seq_len):
    if kind == "hf":
        return hugging_face(m, setting)
    if kind == "gpt":
        from gpt_peer import Gpt

        model = Gpt(m, seq_len)
        return model, model
    model = Llama(m, seq_len)
    if m["tie_embeddings"]:
        model.head.weight = model.embedding.weight
    return model, torch.compile(model) if kind == "compile" else model


def document_ends(length, mean):
    """Where the documents of a row end. Their lengths are distributed as in Stepforge's synthetic data."""
    ends, generator = [0], random.Random(1)
    while ends[-1] < length:
        ends.append(min(length, ends[-1] + generator.randint(1, 2 * mean - 1)))
    return ends[1:]


def attend_in_turn(attention, lengths, q, k, v):
    parts = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    return torch.cat([Attention.attend(attention, *part) for part in parts], dim=2)


def attend_in_blocks(attention, mask, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=attention.heads != attention.kv_heads)


def divide_rows(model, ends, in_turn):
    """Attention sees only its own document. All rows have the same documents."""
    lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (number[:, None] == number).tril()
    for block in model.blocks:
        a = block.attention
        a.attend = functools.partial(attend_in_turn, a, lengths) if in_turn else functools.partial(attend_in_blocks, a, mask)


class MasterWeights:
    """An optimizer of fp32 weights for a model of bf16 weights."""

    def __init__(self, parameters, make):
        self.parameters = list(parameters)
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.data = parameter.data.bfloat16()
        self.update = make(self.masters)

    def step(self):
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad.float()
        self.update.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)

    def zero_grad(self, set_to_none):
        for tensor in (*self.parameters, *self.masters):
            tensor.grad = None


def train(kind, setting, config):
    m, training, optimizer = config["model"], config["training"], config["optimizer"]
    bf16 = config.get("precision", {}).get("compute") == "bf16"
    model, logits_of = peer(kind, setting, m, training["seq_len"])
    mean = config["data"].get("synthetic_document_length", 0)
    if mean > 0:
        divide_rows(model, document_ends(training["seq_len"], mean), setting == "tuned")
    make = functools.partial(
        torch.optim.AdamW, lr=optimizer["lr"], betas=(0.9, 0.95), weight_decay=optimizer["weight_decay"], fused=True
    )
    masters = bf16 and setting == "tuned"
    update = MasterWeights(model.parameters(), make) if masters else make(model.parameters())
    generator = torch.Generator().manual_seed(1)
    shape = (training["local_batch_size"], training["seq_len"] + 1)
    seconds, losses, first_end = [], [], None
    for _ in range(training["steps"]):
        tokens = torch.randint(0, m["vocab_size"], shape, generator=generator)
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16 and not masters):
            logits = logits_of(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, m["vocab_size"]), tokens[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_norm"])
        update.step()
        update.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
        first_end = first_end or time.time()
    return {
        "step_seconds": seconds, "first_end": first_end, "losses": losses, "parameters": sum(p.numel() for p in model.parameters())
    }  # fmt: skip


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    config = configuration(sys.argv[2], sys.argv[3:])
    torch.set_num_threads(config["training"]["threads"])
    torch.manual_seed(0)
    kind, _, setting = sys.argv[1].partition("-")
    print(json.dumps(train(kind, setting, config)))


if __name__ == "__main__":
    main()
