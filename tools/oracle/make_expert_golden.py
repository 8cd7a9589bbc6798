#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records tests/golden/models/experts_*.safetensors: mixtures of experts of `transformers`, fp32 on the CPU.

    tools/oracle/make_expert_golden.py FOLDER

Each file has the weights of a random layer x + block(norm(x)) under their names in Hugging Face files, its input `x` [tokens, width], the
gradient `cotangent` of its output, and what came out: `out`, `x.grad`, and the gradient `NAME.grad` of each weight. This version of
transformers keeps the experts of a block in one tensor, which is written expert by expert.
"""
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3Config, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

LAYER = "model.layers.0."
TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 24, 16, 12, 8, 3
SIZES = {"hidden_size": WIDTH, "hidden_act": "silu"}


def qwen3():
    config = Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=CHOSEN, norm_topk_prob=True, experts_implementation="eager"
    )  # fmt: skip
    return Qwen3MoeSparseMoeBlock(config), "mlp.", ("gate_proj", "up_proj", "down_proj")


def mixtral():
    config = MixtralConfig(
        **SIZES, intermediate_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, router_jitter_noise=0.0, experts_implementation="eager"
    )  # fmt: skip
    return MixtralSparseMoeBlock(config), "block_sparse_moe.", ("w1", "w3", "w2")


def deepseek():
    config = DeepseekV3Config(
        **SIZES, moe_intermediate_size=HIDDEN, n_routed_experts=EXPERTS, num_experts_per_tok=CHOSEN, n_shared_experts=2, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, experts_implementation="eager",
    )  # fmt: skip
    return DeepseekV3MoE(config), "mlp.", ("gate_proj", "up_proj", "down_proj")


def randomize(block, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (2.0 / parameter.shape[-1]) ** 0.5)
        for name, buffer in block.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))


def by_name(block, prefix, matrices, value):
    """`value` of each parameter of the block, under the names of Hugging Face files."""
    gate, up, down = matrices
    tensors = {}
    for name, parameter in block.named_parameters():
        tensor = value(parameter)
        if name == "experts.gate_up_proj":
            for expert, packed in enumerate(tensor):
                tensors[f"{prefix}experts.{expert}.{gate}.weight"], tensors[f"{prefix}experts.{expert}.{up}.weight"] = packed.chunk(2)
        elif name == "experts.down_proj":
            for expert, matrix in enumerate(tensor):
                tensors[f"{prefix}experts.{expert}.{down}.weight"] = matrix
        else:
            tensors[prefix + name] = tensor
    return tensors


def record(folder, name, make, seed):
    block, prefix, matrices = make()
    block = block.float().train()
    randomize(block, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(1, TOKENS, WIDTH, generator=generator).requires_grad_()
    norm = (1 + 0.3 * torch.randn(WIDTH, generator=generator)).requires_grad_()
    cotangent = torch.randn(1, TOKENS, WIDTH, generator=generator)
    out = x + block(torch.nn.functional.rms_norm(x, (WIDTH,), norm, 1e-5))
    (out * cotangent).sum().backward()
    weights = by_name(block, prefix, matrices, lambda p: p.detach()) | {"post_attention_layernorm.weight": norm.detach()}
    grads = by_name(block, prefix, matrices, lambda p: p.grad) | {"post_attention_layernorm.weight": norm.grad}
    tensors = {LAYER + key: tensor for key, tensor in weights.items()} | {LAYER + key + ".grad": tensor for key, tensor in grads.items()}
    for key, buffer in block.named_buffers():
        if key.endswith("e_score_correction_bias"):
            tensors[LAYER + prefix + key] = buffer
    tensors |= {"x": x.detach()[0], "x.grad": x.grad[0], "cotangent": cotangent[0], "out": out.detach()[0]}
    save_file({key: tensor.contiguous().clone() for key, tensor in tensors.items()}, folder / f"experts_{name}.safetensors")


def main():
    folder = Path(sys.argv[1])
    for seed, (name, make) in enumerate([("qwen3", qwen3), ("mixtral", mixtral), ("deepseek", deepseek)]):
        record(folder, name, make, 10 * seed)


main()
