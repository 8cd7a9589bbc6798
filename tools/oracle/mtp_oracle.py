#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares multi-token prediction of DeepSeek-V3 with the MtpModel of Hugging Face `transformers`, fp32 on the CPU.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/mtp_oracle.py STEPFORGE
    tools/oracle/mtp_oracle.py --record FOLDER      writes tests/golden/models/deepseek_v3_mtp

The layers of depth 1, 2, ... take documents one at a time. The loss of a depth is the mean over all labels that it has, in documents
that are long enough; what `stepforge eval --gradients` writes are the gradients of the mean loss of the model and 0.3 times the mean
of these. They may differ by 1e-4 of the largest element of each tensor. Twenty steps of training must log the same losses, also of
each depth, to 1e-5. Import and export must give each tensor back, bit for bit, and transformers must read what was
exported. Exit code 1 with the differences.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from model_oracle import (
    compare_export, compare_gradients, deepseek_v3, make_cu_seqlens, make_tokens, randomize, save_model, stepforge_outputs, transformers_outputs,
)  # fmt: skip
from safetensors.torch import load_file, save_file
from train_oracle import STEPS, TOLERANCE, adamw, make_letters, tokens_of_step, worst_relative, write_config, write_text
from train_oracle import MAX_NORM, SIZES, stepforge_steps
from transformers.modeling_layers import MtpModel
from transformers.utils import logging

LOSS_WEIGHT = 0.3
MODELS = {
    "one layer": lambda: deepseek_v3(4, num_mtp_layers=1, tie_word_embeddings=False),
    "two layers, tied": lambda: deepseek_v3(4, num_mtp_layers=2, tie_word_embeddings=True),
    "three layers, no dense ones": lambda: deepseek_v3(3, hidden_size=96, first_k_dense_replace=0, num_mtp_layers=3, num_hidden_layers=3),
}


def mtp_of(model, seed):
    mtp = MtpModel(model, model.config.num_mtp_layers)
    generator = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for name, tensor in [*own_parameters(mtp), *corrections(mtp)]:
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" in name:
                noise = 1 + 0.3 * noise
            elif name.endswith("e_score_correction_bias"):
                noise = 0.1 * noise
            else:
                noise = noise * (2.0 / tensor.shape[-1]) ** 0.5
            tensor.copy_(noise)
    return mtp.eval()


def own_parameters(mtp):
    return [(name, tensor) for name, tensor in mtp.named_parameters() if name.startswith("layers.")]


def corrections(mtp):
    return [(name, tensor) for name, tensor in mtp.named_buffers() if name.endswith("e_score_correction_bias")]


def in_files(name, tensor, layers):
    """The tensors of the model's file that a tensor of MtpModel is, by name."""
    _, depth, rest = name.split(".", 2)
    prefix = f"model.layers.{layers + int(depth)}."
    if rest == "post_norm.weight":
        return {prefix + "shared_head.norm.weight": tensor}
    rest = rest.removeprefix("mtp_block.")
    if rest == "mlp.experts.gate_up_proj":
        halves = {}
        for expert, both in enumerate(tensor):
            gate, up = both.chunk(2)
            halves[f"{prefix}mlp.experts.{expert}.gate_proj.weight"] = gate
            halves[f"{prefix}mlp.experts.{expert}.up_proj.weight"] = up
        return halves
    if rest == "mlp.experts.down_proj":
        return {f"{prefix}mlp.experts.{expert}.down_proj.weight": one for expert, one in enumerate(tensor)}
    return {prefix + rest: tensor}


def add_to_file(model, mtp, folder, values, copies):
    """Adds the tensors of the layers, `values` of each, to the weights in `folder`."""
    file = folder / "model.safetensors"
    stored = load_file(file)
    for name, tensor in values:
        stored |= {key: part.detach().clone().contiguous() for key, part in in_files(name, tensor, model.config.num_hidden_layers).items()}
    if copies:
        for depth in range(model.config.num_mtp_layers):
            prefix = f"model.layers.{model.config.num_hidden_layers + depth}."
            stored[prefix + "embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
            stored[prefix + "shared_head.head.weight"] = model.lm_head.weight.detach().clone()
    save_file(stored, file, {"format": "pt"})


def save(model, mtp, folder):
    save_model(model, folder)
    add_to_file(model, mtp, folder, [*own_parameters(mtp), *corrections(mtp)], copies=True)


def losses_of_document(model, mtp, tokens):
    """The sum of cross-entropies of the model and of each depth, and how many labels each has."""
    cross_entropy = torch.nn.functional.cross_entropy
    hidden = model.model(tokens[None]).last_hidden_state
    sums = [cross_entropy(model.lm_head(hidden)[0, :-1], tokens[1:], reduction="sum")]
    counts = [len(tokens) - 1]
    for depth in range(1, model.config.num_mtp_layers + 1):
        count = len(tokens) - depth - 1
        if count <= 0:
            break
        positions = torch.arange(count)[None]
        hidden = mtp.forward_layer(depth - 1, hidden[:, :count], positions, None, input_ids=tokens[None, depth : depth + count])
        sums.append(cross_entropy(model.lm_head(hidden)[0], tokens[depth + 1 :], reduction="sum"))
        counts.append(count)
    return sums, counts


def depth_counts(model, documents):
    return [sum(max(0, len(tokens) - depth - 1) for tokens in documents) for depth in range(model.config.num_mtp_layers + 1)]


def weights_of_depths(model):
    depths = model.config.num_mtp_layers
    return [1.0] + [LOSS_WEIGHT / depths] * depths


def backward(model, mtp, documents):
    """Returns the mean losses of the model and of each depth over all documents."""
    counts, weights = depth_counts(model, documents), weights_of_depths(model)
    means = [0.0] * len(counts)
    for tokens in documents:
        if len(tokens) < 2:
            continue
        sums, _ = losses_of_document(model, mtp, tokens)
        sum(weight * loss / count for weight, loss, count in zip(weights, sums, counts)).backward()
        for depth, loss in enumerate(sums):
            means[depth] += loss.item() / counts[depth]
    return means


def documents_of(tokens, borders):
    flat = tokens.flatten().long()
    return [flat[begin:end] for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist())]


def gradients(model, mtp, documents, folder):
    """By the names of the model's file. Destroys the model."""
    backward(model, mtp, documents)
    with torch.no_grad():
        for parameter in [*model.parameters(), *(tensor for _, tensor in own_parameters(mtp))]:
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    model.save_pretrained(folder)
    add_to_file(model, mtp, folder, own_parameters(mtp), copies=False)
    return {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if not name.endswith("e_score_correction_bias")}


def exported_folder_loads(name, folder, mtp):
    """Whether transformers reads the layers that were exported."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    first = model.config.num_hidden_layers
    # transformers knows the number of the layer in the published model only.
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{first + depth}\." for depth in range(model.config.num_mtp_layers)]
    read = dict(MtpModel.from_pretrained(model).named_parameters())
    wrong = [key for key, tensor in own_parameters(mtp) if not torch.equal(read[key], tensor)]
    print(f"{'DIFFER' if wrong else 'equal '}  {name + ', export read by transformers':48} {' '.join(wrong)}")
    return 1 if wrong else 0


def check(program, seed, name):
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        model = randomize(MODELS[name](), seed)
        mtp = mtp_of(model, seed)
        folder = work / "model"
        save(model, mtp, folder)
        tokens, borders = make_tokens(model.config.vocab_size, 4, 96, seed), make_cu_seqlens(4, 96)
        got = stepforge_outputs(program, folder, tokens, borders, work)[1]
        faults = compare_export(program, name, folder, work)
        faults += exported_folder_loads(name, work / "export", mtp)
        expected = gradients(model, mtp, documents_of(tokens, borders), work / "gradients")
        return faults + compare_gradients(name, expected, got)


def pytorch_steps(model, mtp, letters, rates):
    layers = torch.nn.ModuleList([model, mtp.layers])
    update = adamw(layers)
    losses = []
    for step, rate in enumerate(rates):
        losses.append(backward(model, mtp, list(tokens_of_step(letters, step))))
        torch.nn.utils.clip_grad_norm_(layers.parameters(), MAX_NORM)
        for group in update.param_groups:
            group["lr"] = rate
        update.step()
        update.zero_grad()
    return losses


def check_training(program, seed):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Each token takes all experts: within 20 steps rounding would change a choice among them.
        model = randomize(deepseek_v3(4, num_mtp_layers=2, num_experts_per_tok=6, n_group=1, topk_group=1, **SIZES), seed)
        mtp = mtp_of(model, seed)
        save(model, mtp, folder / "model")
        letters = make_letters()
        write_text(folder / "text.txt", letters)
        write_config(folder, model)
        steps, _ = stepforge_steps(program, folder, ["train", folder / "run.toml", "model.n_mtp_layers=2"])
        losses = pytorch_steps(model, mtp, letters, [step["lr"] for step in steps])
        keys = ["loss_metrics/global_avg_loss", "loss_metrics/mtp_1", "loss_metrics/mtp_2"]
        gaps = [worst_relative([step[key] for step in steps], [step[depth] for step in losses]) for depth, key in enumerate(keys)]
        good = len(steps) == STEPS and max(gaps) <= TOLERANCE
        print(f"{'equal ' if good else 'DIFFER'}  {len(steps)} steps: losses {' '.join(f'{gap:.1e}' for gap in gaps)}")
        return 0 if good else 1


def record(target):
    seed = 40
    sizes = {"hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 40}
    model = randomize(deepseek_v3(4, num_mtp_layers=2, **sizes), seed)
    mtp = mtp_of(model, seed)
    target.mkdir(parents=True, exist_ok=True)
    save(model, mtp, target)
    (target / "generation_config.json").unlink(missing_ok=True)
    tokens, borders = make_tokens(model.config.vocab_size, 2, 24, seed), make_cu_seqlens(2, 24)
    save_file({"tokens": tokens, "cu_seqlens": borders}, target / "tokens.safetensors")
    save_file(transformers_outputs(model, tokens, borders), target / "expected.safetensors")
    with tempfile.TemporaryDirectory() as temporary:
        save_file(gradients(model, mtp, documents_of(tokens, borders), Path(temporary)), target / "gradients.safetensors")
    print(f"{target}: {sum(file.stat().st_size for file in target.iterdir()):,} bytes")


def main():
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if len(sys.argv) == 3 and sys.argv[1] == "--record":
        record(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        program = Path(sys.argv[1]).resolve()
        faults = sum(check(program, seed, name) for seed, name in enumerate(MODELS))
        sys.exit(1 if faults + check_training(program, 7) else 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
