#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares twenty training steps with context parallelism with PyTorch's ring attention over Gloo, in fp32.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/context_oracle.py STEPFORGE

The peer's ranks are processes of this script: a transformers model whose attention is PyTorch's load-balanced ring
(torch.distributed.tensor.experimental) around its own CPU attention. Gradients are summed over all ranks. The comparison and its
tolerances are those of train_oracle.py. Exit code 1 with the differences.
"""
import json
import math

import torch
import torch.distributed as dist
from fsdp_oracle import MICRO_BATCHES, ROWS, compare_with_peers, run_oracle
from safetensors.torch import save_file
from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring
from train_oracle import LENGTH, MAX_NORM, adamw, make_letters, tokens_of_step
from transformers import AttentionInterface, AutoModelForCausalLM

# (model, ranks, ranks of a context-parallel group, method)
LAYOUTS = [
    ("llama", 2, 2, "allgather"), ("llama", 2, 2, "ring"), ("qwen3", 2, 2, "ulysses"),
    ("qwen3, tied", 4, 2, "ring"), ("llama", 4, 4, "ring"), ("qwen3", 4, 4, "hybrid"),
]  # fmt: skip


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(context, query, key, value, group, scale):
        out, logsumexp = torch_ring._templated_ring_attention(
            group, 2, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, query, key, value, is_causal=True, scale=scale
        )
        context.save_for_backward(query, key, value, out, logsumexp)
        context.group, context.scale = group, scale
        return out

    @staticmethod
    def backward(context, gradient):
        query, key, value, out, logsumexp = context.saved_tensors

        def attention_backward(grad_out, query, key, value, out, logsumexp, is_causal, scale):
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_out, query, key, value, out, logsumexp, 0.0, is_causal, scale=scale
            )

        gradients = torch_ring._templated_ring_attention_backward(
            context.group, 2, attention_backward, gradient, "grad_out", query, key, value, out, logsumexp, True, scale=context.scale
        )
        return (*gradients, None, None)


def ring_attention(group):
    """Attention as transformers calls it."""

    def attend(module, query, key, value, attention_mask, scaling=None, **_):
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        out = RingAttention.apply(query, key, value, group, scaling or 1 / math.sqrt(query.shape[-1]))
        return out.transpose(1, 2).contiguous(), None

    return attend


def positions_of(rank, degree):
    """A chunk of each half of the row."""
    chunks = torch.arange(LENGTH).chunk(2 * degree)
    return torch.cat((chunks[rank], chunks[2 * degree - 1 - rank]))


def peer(folder, degree, rates):
    """One rank, started by run_oracle; rank 0 writes losses, norms and weights into the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = dist.get_world_size() // degree
    mesh = dist.init_device_mesh("cpu", (groups, degree), mesh_dim_names=("data", "context"))
    AttentionInterface.register("torch_ring", ring_attention(mesh.get_group("context")))
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="torch_ring").train()
    update = adamw(model)
    letters = make_letters(ROWS)
    positions = positions_of(mesh.get_local_rank("context"), degree)
    results = []
    for step, rate in enumerate(rates):
        for group in update.param_groups:
            group["lr"] = rate
        tokens = tokens_of_step(letters, step, ROWS).chunk(groups)[mesh.get_local_rank("data")]
        inputs, labels = tokens[:, :-1][:, positions], tokens[:, 1:][:, positions]
        logits = model(inputs, position_ids=positions[None].expand(len(inputs), -1)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (ROWS * LENGTH)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        update.step()
        update.zero_grad()
        total = loss.detach().to(torch.float64)
        dist.all_reduce(total)
        results.append((total.item(), norm.item()))
    if dist.get_rank() == 0:
        tied = model.config.tie_word_embeddings
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
        save_file(weights, folder / "peer.safetensors")
        (folder / "peer.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def check(program, seed, name, ranks, degree, method):
    groups = ranks // degree
    return compare_with_peers(__file__, program, seed, name, ranks, degree, f"{groups} x {degree} ranks, {method}", [
        f"training.local_batch_size={ROWS // groups // MICRO_BATCHES}", f"parallelism.context_parallel_degree={degree}",
        f"parallelism.context_parallel_method={method}",
    ])  # fmt: skip


if __name__ == "__main__":
    run_oracle(__doc__, peer, check, LAYOUTS)
