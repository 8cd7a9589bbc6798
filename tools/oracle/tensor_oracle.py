#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares twenty training steps with tensor parallelism with PyTorch's `parallelize_module` over Gloo, in fp32.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/tensor_oracle.py STEPFORGE

The peer's ranks are processes of this script: column- and row-wise projections, the embedding divided by tokens, slices of the sequence
between them (`SequenceParallel`), the loss over a divided vocabulary (`loss_parallel`). Where several groups of ranks read different rows, their gradients are averaged. The comparison
and its tolerances are those of train_oracle.py. Exit code 1 with the differences.
"""
import json

import torch
import torch.distributed as dist
from fsdp_oracle import MICRO_BATCHES, ROWS, compare_with_peers, run_oracle
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)  # fmt: skip
from train_oracle import LENGTH, MAX_NORM, adamw, make_letters, tokens_of_step
from transformers import AutoModelForCausalLM

# (model, ranks, ranks of a tensor-parallel group, Stepforge's options)
LAYOUTS = [
    ("llama", 2, 2, []), ("qwen3", 2, 2, []), ("llama", 4, 2, []), ("qwen3", 4, 2, []),
    ("llama", 2, 2, ["enable_sequence_parallel=false"]), ("qwen3", 2, 2, ["disable_loss_parallel=true"]),
]  # fmt: skip


def divide(model, mesh):
    slices, whole = Shard(1), Replicate()
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=slices),
        "model.layers.*.input_layernorm": SequenceParallel(use_local_output=True),
        "model.layers.*.post_attention_layernorm": SequenceParallel(use_local_output=True),
        "model.norm": SequenceParallel(use_local_output=True),
        "model.layers.*.self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": slices}, desired_input_kwarg_layouts={"hidden_states": whole}, use_local_output=True
        ),
        "model.layers.*.mlp": PrepareModuleInput(input_layouts=(slices,), desired_input_layouts=(whole,), use_local_output=True),
        "lm_head": ColwiseParallel(input_layouts=slices, output_layouts=Shard(-1), use_local_output=False),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[f"model.layers.*.{name}"] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"model.layers.*.{name}"] = RowwiseParallel(output_layouts=slices)
    parallelize_module(model, mesh, plan)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def finish_gradients(model, mesh):
    """Sums what each rank computed of a whole weight, averages over groups that read other rows, and clips. Returns the norm."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter.grad, DTensor):  # a norm's is the sum of those of the slices
            parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        if name.endswith(("q_norm.weight", "k_norm.weight")):  # of this rank's heads
            dist.all_reduce(parameter.grad, group=mesh.get_group("tensor"))
        dist.all_reduce(local(parameter.grad), group=mesh.get_group("data"))
        local(parameter.grad).div_(mesh.size(0))
    norm = torch.linalg.vector_norm(torch.stack([whole(p.grad).norm() for p in model.parameters()]))
    scale = min(1.0, MAX_NORM / (norm.item() + 1e-6))
    for parameter in model.parameters():
        local(parameter.grad).mul_(scale)
    return norm.item()


def peer(folder, tensor, rates):
    """One rank, started by run_oracle; rank 0 writes losses, norms and whole weights into the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = dist.get_world_size() // tensor
    mesh = dist.init_device_mesh("cpu", (groups, tensor), mesh_dim_names=("data", "tensor"))
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager").train()
    divide(model, mesh["tensor"])
    update = adamw(model)
    letters = make_letters(ROWS)
    # transformers would derive both from the number of embeddings, which are a slice.
    positions = torch.arange(LENGTH)[None]
    mask = torch.full((1, 1, LENGTH, LENGTH), float("-inf")).triu(1)
    results = []
    for step, rate in enumerate(rates):
        for group in update.param_groups:
            group["lr"] = rate
        tokens = tokens_of_step(letters, step, ROWS).chunk(groups)[mesh.get_local_rank("data")]
        logits = model(tokens[:, :-1], position_ids=positions, attention_mask=mask).logits
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        norm = finish_gradients(model, mesh)
        update.step()
        update.zero_grad()
        mean = whole(loss).detach().to(torch.float64)
        dist.all_reduce(mean, group=mesh.get_group("data"))
        results.append((mean.item() / groups, norm))
    weights = {name: whole(parameter).detach() for name, parameter in model.named_parameters()}
    if dist.get_rank() == 0:
        save_file(weights, folder / "peer.safetensors")
        (folder / "peer.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def check(program, seed, name, ranks, tensor, options):
    groups = ranks // tensor
    label = " ".join([f"{groups} x {tensor} ranks", *options])
    return compare_with_peers(__file__, program, seed, name, ranks, tensor, label, [
        f"training.local_batch_size={ROWS // groups // MICRO_BATCHES}", f"parallelism.tensor_parallel_degree={tensor}",
        *(f"parallelism.{option}" for option in options),
    ])  # fmt: skip


if __name__ == "__main__":
    run_oracle(__doc__, peer, check, LAYOUTS)
