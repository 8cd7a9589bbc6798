# SPDX-License-Identifier: Apache-2.0
"""Qwen3-MoE in plain PyTorch with its experts spread over the ranks of a group: the peer of experts_oracle.py and of the
benchmark of ranks (tools/bench/ranks_peer.py).

Every rank computes its own rows. Rows of tokens go to the ranks that have their experts and back in `all_to_all_single` with
uneven parts; all else is a copy on each rank. Sizes have the names of [model] in a Stepforge configuration, parameters those of
the Hugging Face file.
"""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Exchange(torch.autograd.Function):
    """Sends `sent[r]` consecutive rows to rank r of the group, and returns `received[r]` rows of each. Gradients go back."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.way_back = received, sent, group
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.way_back), None, None, None


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """The router, and the experts of this rank."""

    def __init__(self, m, group):
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        self.chosen, self.normalize = m["experts_per_token"], m["norm_topk_prob"]
        self.own = m["n_experts"] // self.ranks
        first = dist.get_rank(group) * self.own
        self.gate = nn.Linear(m["dim"], m["n_experts"], bias=False)
        self.experts = nn.ModuleDict({str(first + e): Mlp(m["dim"], m["moe_ffn_dim"]) for e in range(self.own)})

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        weights, experts = self.route(x)
        order = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=self.gate.out_features).view(self.ranks, self.own)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = Exchange.apply(x[order // self.chosen], sent, received, self.group)
        results = Exchange.apply(self.compute(rows, arriving), received, sent, self.group)
        return torch.zeros_like(x).index_add(0, order // self.chosen, results * weights.flatten()[order, None]).view(shape)

    def route(self, x):
        probabilities = self.gate(x).float().softmax(-1)
        weights, experts = probabilities.topk(self.chosen)
        return weights / weights.sum(-1, keepdim=True) if self.normalize else weights, experts

    def compute(self, rows, arriving):
        """What the experts make of rows that are sorted by sender, and each sender's by expert."""
        order = torch.arange(self.own).repeat(self.ranks).repeat_interleave(arriving.flatten()).argsort(stable=True)
        parts = rows[order].split(arriving.sum(0).tolist())
        results = torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])
        return results[order.argsort()]


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.head_dim = m["head_dim"]
        self.q_proj = nn.Linear(m["dim"], m["n_heads"] * m["head_dim"], bias=False)
        self.k_proj = nn.Linear(m["dim"], m["n_kv_heads"] * m["head_dim"], bias=False)
        self.v_proj = nn.Linear(m["dim"], m["n_kv_heads"] * m["head_dim"], bias=False)
        self.o_proj = nn.Linear(m["n_heads"] * m["head_dim"], m["dim"], bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(m["head_dim"], m["norm_eps"]), nn.RMSNorm(m["head_dim"], m["norm_eps"])

    def forward(self, x, cos, sin):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q).transpose(1, 2), cos, sin), rotate(self.k_norm(k).transpose(1, 2), cos, sin)
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, m, mlp):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(m["dim"], m["norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(m["dim"], m["norm_eps"])
        self.self_attn, self.mlp = Attention(m), mlp

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, m, group):
        super().__init__()
        self.embed_tokens = nn.Embedding(m["vocab_size"], m["dim"])
        self.layers = nn.ModuleList(
            Layer(m, Mlp(m["dim"], m["ffn_dim"]) if number in m.get("dense_layers", []) else Experts(m, group))
            for number in range(m["n_layers"])
        )
        self.norm = nn.RMSNorm(m["dim"], m["norm_eps"])
        self.frequencies = m["rope_theta"] ** (-torch.arange(0, m["head_dim"], 2).float() / m["head_dim"])

    def forward(self, tokens):
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), self.frequencies).repeat(1, 2)
        x, cos, sin = self.embed_tokens(tokens), angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class ExpertModel(nn.Module):
    """`degree`: over how many neighbouring ranks experts are spread; further ranks have copies of them."""

    def __init__(self, m, degree):
        super().__init__()
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size() // degree, degree), mesh_dim_names=("copies", "experts"))
        self.model = Decoder(m, mesh.get_group("experts"))
        self.lm_head = nn.Linear(m["dim"], m["vocab_size"], bias=False)
        self.copies, self.spread = mesh.get_group("copies"), mesh.get_group("experts")

    def forward(self, tokens):
        return self.lm_head(self.model(tokens))

    def step(self, inputs, labels, rows, max_norm):
        """Gradients of the mean loss over the `rows` rows of all ranks, clipped; returns this rank's part of the loss, and the norm."""
        loss = F.cross_entropy(self(inputs).flatten(0, 1), labels.flatten(), reduction="sum") / (rows * labels.shape[1])
        loss.backward()
        spread, whole = [], []
        for name, parameter in self.named_parameters():
            if parameter.grad is None:  # an expert without tokens
                parameter.grad = torch.zeros_like(parameter)
            (spread if ".experts." in name else whole).append(parameter.grad)
        add_over(whole, None)
        add_over(spread, self.copies)
        square = torch.stack([gradient.double().square().sum() for gradient in spread]).sum()
        dist.all_reduce(square, group=self.spread)
        norm = (square + torch.stack([gradient.double().square().sum() for gradient in whole]).sum()).sqrt().item()
        torch._foreach_mul_(spread + whole, min(1.0, max_norm / (norm + 1e-6)))
        return loss.item(), norm


def add_over(gradients, group):
    """Sums over the ranks of the group, in one message."""
    if dist.get_world_size(group) == 1:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
