#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training run in PyTorch, the same work as a Stepforge run of tools/bench: the peers of `make bench`.

    tools/bench/peer.py eager|compile|hf CONFIG.toml    prints one JSON line: seconds of each step, wall-clock end of step 1
    tools/bench/peer.py matrix CONFIG.toml              prints the machine's rate on the model's own matrix products

fp32, the threads of the config, cross-entropy over all tokens, clip_grad_norm_, fused AdamW: the usual training loop.
"""
import json
import sys
import time
import tomllib

import torch
import torch.nn.functional as F
from torch import nn

from work import matrix_shapes


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
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


# Names in config.json. Each family ignores what it does not have.
HUGGING_FACE_NAMES = {
    "dim": "hidden_size", "ffn_dim": "intermediate_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "max_position": "max_position_embeddings", "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings", "n_experts": "num_local_experts", "experts_per_token": "num_experts_per_tok",
    "moe_ffn_dim": "moe_intermediate_size", "n_expert_groups": "n_group", "groups_per_token": "topk_group",
    "first_dense_layers": "first_k_dense_replace",
}  # fmt: skip


def hugging_face(m, seq_len):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {HUGGING_FACE_NAMES.get(name, name): value for name, value in m.items() if name not in ("family", "rope_theta")}
    rope = {"rope_type": "default", "rope_theta": m["rope_theta"]}
    config = AutoConfig.for_model(m["family"], **sizes, rope_parameters=rope, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", experts_implementation="eager").train()
    return model, lambda tokens: model(input_ids=tokens).logits


def peer(kind, m, seq_len):
    if kind == "hf":
        return hugging_face(m, seq_len)
    model = Llama(m, seq_len)
    return model, torch.compile(model) if kind == "compile" else model


def train(kind, config):
    m, training, optimizer = config["model"], config["training"], config["optimizer"]
    model, logits_of = peer(kind, m, training["seq_len"])
    update = torch.optim.AdamW(
        model.parameters(), lr=optimizer["lr"], betas=(0.9, 0.95), weight_decay=optimizer["weight_decay"], fused=True
    )
    generator = torch.Generator().manual_seed(1)
    shape = (training["local_batch_size"], training["seq_len"] + 1)
    seconds, losses, first_end = [], [], None
    for _ in range(training["steps"]):
        tokens = torch.randint(0, m["vocab_size"], shape, generator=generator)
        began = time.perf_counter()
        loss = F.cross_entropy(logits_of(tokens[:, :-1]).reshape(-1, m["vocab_size"]), tokens[:, 1:].reshape(-1))
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


def matrix_rate(config):
    """FLOP/s of the forward, input-gradient and weight-gradient products of one step, back to back, nothing else; the best of some."""
    m, training = config["model"], config["training"]
    shapes = matrix_shapes(m, training["seq_len"] * training["local_batch_size"])
    seconds = flops = 0.0
    for rows, inner, columns, times in shapes:
        x, w, g = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(rows, columns)
        out, dx, dw = torch.empty(rows, columns), torch.empty(rows, inner), torch.empty(columns, inner)
        for product in (
            lambda: torch.mm(x, w.t(), out=out),
            lambda: torch.mm(g, w, out=dx),
            lambda: torch.mm(g.t(), x, out=dw),
        ):
            best = min(timed(product) for _ in range(6))
            seconds += times * best
            flops += times * 2.0 * rows * inner * columns
    return {"matrix_flops": flops / seconds}


def timed(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[2], "rb") as file:
        config = tomllib.load(file)
    torch.set_num_threads(config["training"]["threads"])
    torch.manual_seed(0)
    print(json.dumps(matrix_rate(config) if sys.argv[1] == "matrix" else train(sys.argv[1], config)))


if __name__ == "__main__":
    main()
