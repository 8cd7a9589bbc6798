#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares [distillation] with the same steps in PyTorch: same student, teacher, tokens, rates, fp32.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/distillation_oracle.py STEPFORGE

First teacher.safetensors must have the most probable tokens of Hugging Face's teacher for every label of the steps, up to tokens whose
logits are equal to 1e-4, and their log-probabilities at the temperature T, divided by the probability of all of them, to 1e-5. Then twenty
steps of the loss (1 - w) cross-entropy + w T^2 sum p (log p - log q), with p and q of logits / T and p of Hugging Face's teacher at the
tokens of the file, must agree as in train_oracle.py: losses, divergences and gradient norms to 1e-5 relative, the final weights to 1e-4 of the tensor's largest element.
Exit code 1 with the differences.
"""
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from model_oracle import randomize, save_model
from safetensors.torch import load_file
from train_oracle import LENGTH, MODELS, ROWS, TOLERANCE, adamw, compare, run_oracle, stepforge_steps, take_step, tokens_of_step, worst_relative, write_inputs


@dataclass
class Case:
    student: str
    teacher: str
    weight: float
    top_k: int
    temperature: float = 1.0


CASES = {
    "half, 16 tokens": Case("llama", "qwen3", 0.5, 16),
    "teacher only": Case("qwen3, tied", "llama", 1.0, 32),
    "all tokens, capped logits": Case("gemma2", "llama", 0.3, 257),
    "one token": Case("llama", "llama", 0.7, 1),
    "temperature 2": Case("qwen3, tied", "llama", 0.6, 32, 2.0),
    "temperature 1.5, capped logits": Case("gemma2", "qwen3", 1.0, 257, 1.5),
}


def make_teacher(case, folder, seed):
    """Wider than the student, and not its weights if it is of the same kind."""
    teacher = randomize(MODELS[case.teacher](hidden_size=96), seed + 100)
    save_model(teacher, folder)
    return teacher.eval()


def targets_of_rows(folder, rows):
    """ids and log-probabilities [rows, LENGTH, k] of the first rows of the text, each of which has a label at every token."""
    file = load_file(folder / "run/teacher.safetensors")
    offsets = file["offsets"][: rows + 1].tolist()
    if offsets != [row * LENGTH for row in range(rows + 1)]:
        sys.exit(f"the first rows do not have {LENGTH} labels each: {offsets[:4]} ...")
    targets = file["targets"][: rows * LENGTH].view(rows, LENGTH, 2, -1)
    return targets[:, :, 0].long(), targets[:, :, 1]


def teacher_log_probs(case, teacher, tokens, ids):
    """[rows, LENGTH, k]: at the tokens `ids`, which must be the most probable ones."""
    with torch.no_grad():
        logits = teacher(tokens[:, :-1]).logits
    chosen = logits.gather(2, ids)
    most = logits.topk(ids.shape[2], dim=2).values
    if (chosen - most).abs().max() > 1e-4:
        sys.exit("teacher.safetensors does not have the most probable tokens")
    return torch.log_softmax(chosen / case.temperature, dim=2)


def pytorch_steps(case, model, teacher, letters, rates, ids, stored):
    update = adamw(model)
    losses, divergences, norms = [], [], []
    for step, rate in enumerate(rates):
        tokens = tokens_of_step(letters, step)
        rows = slice(step * ROWS, (step + 1) * ROWS)
        log_p = teacher_log_probs(case, teacher, tokens, ids[rows])
        if (log_p - stored[rows]).abs().max() > 1e-5 * log_p.abs().max():
            sys.exit("teacher.safetensors has other log-probabilities")
        logits = model(tokens[:, :-1]).logits
        log_q = torch.log_softmax(logits / case.temperature, dim=2)
        entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        divergence = (log_p.exp() * (log_p - log_q.gather(2, ids[rows]))).sum(2).mean()
        loss = (1 - case.weight) * entropy + case.weight * case.temperature**2 * divergence
        norms.append(take_step(model, update, rate, loss))
        losses.append(loss.item())
        divergences.append(divergence.item())
    return losses, divergences, norms


def check(program, seed, name):
    case = CASES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, letters = write_inputs(folder, case.student, seed)
        teacher = make_teacher(case, folder / "teacher", seed)
        settings = [f"distillation.teacher={folder / 'teacher'}", f"distillation.top_k={case.top_k}", f"distillation.weight={case.weight}",
                    f"distillation.temperature={case.temperature}"]  # fmt: skip
        steps, weights = stepforge_steps(program, folder, ["train", folder / "run.toml", *settings])
        ids, stored = targets_of_rows(folder, len(steps) * ROWS)
        losses, divergences, norms = pytorch_steps(case, model.train(), teacher, letters, [step["lr"] for step in steps], ids, stored)
        gap = worst_relative([step["distillation/kl"] for step in steps], divergences)
        if gap > TOLERANCE:
            print(f"DIFFER  {name}: divergences {gap:.1e}")
        return 0 if compare(name, steps, weights, losses, norms, model.state_dict()) and gap <= TOLERANCE else 1


if __name__ == "__main__":
    run_oracle(__doc__, check, CASES)
