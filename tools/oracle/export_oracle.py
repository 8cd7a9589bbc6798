#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains every family on four ranks in several layouts, compares twenty steps with one rank's, and exports to transformers.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/export_oracle.py STEPFORGE

Losses, gradient norms and weights are compared as in train_oracle.py, where one rank's are compared with PyTorch. Logits of transformers for the
export may differ from those of `stepforge eval` as in model_oracle.py, and both must continue a prompt with the same text.
Exit code 1 with the differences.
"""
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from fsdp_oracle import ROWS, launch_steps
from model_oracle import compare as compare_outputs
from model_oracle import make_tokens, stepforge_outputs, transformers_outputs, whole_rows
from train_oracle import BYTE_VOCABULARY, LENGTH, compare, run_oracle, stepforge_steps, write_inputs
from transformers import AutoModelForCausalLM

PROMPT, ANSWER_TOKENS = "abcdefgh", 40
WHOLE_ATTENTION = 'parallelism.tensor_parallel_plan=[{ pattern = "attention", style = "replicate" }]'
# Numbers of experts that four ranks can share.
SIZES = {
    "qwen3_moe": {"num_experts": 8}, "qwen2_moe": {"num_experts": 8}, "mixtral": {"num_local_experts": 8},
    "deepseek_v2": {"n_routed_experts": 8}, "deepseek_v3": {"n_routed_experts": 12},
    "gpt_oss": {"num_local_experts": 4},  # with more, rounding takes values past the limits of the activation, where its gradient jumps
}  # fmt: skip


def degrees(**axes):
    return [f"parallelism.{axis}_parallel_degree={degree}" for axis, degree in axes.items()]


def layouts_of(config):
    """Names and settings of the layouts that a model allows on four ranks."""
    if hasattr(config, "kv_lora_rank"):  # whose keys are latents of all heads
        yield "dp 2 x tp 2", [*degrees(tensor=2), WHOLE_ATTENTION]
    else:
        # Norms of all heads together are not divided.
        yield "tp 2 x cp 2", [*degrees(tensor=2, context=2), *([WHOLE_ATTENTION] if config.model_type == "olmo2" else [])]
    if config.model_type in SIZES:
        yield "ep 2 x pp 2", degrees(expert=2, pipeline=2)
        yield "ep 4", degrees(expert=4)
        yield "ep 4, tokens gathered", [*degrees(expert=4), "parallelism.expert_parallel_dispatcher=allgather"]


def compare_answers(label, program, trained, export):
    """Whether both continue a prompt with the same text."""
    answer = subprocess.run(
        [program, "generate", export, "--prompt", PROMPT, "--temperature", "0", "--max-tokens", str(ANSWER_TOKENS)],
        capture_output=True, check=True,
    ).stdout.decode().removesuffix("\n")  # fmt: skip
    prompt = torch.tensor([list(PROMPT.encode())])
    tokens = trained.generate(prompt, do_sample=False, max_new_tokens=ANSWER_TOKENS, pad_token_id=0)[0].tolist()
    expected = bytes(token for token in tokens if token < BYTE_VOCABULARY - 1).decode(errors="replace")
    good = answer == expected
    print(f"{'equal ' if good else 'DIFFER'}  {f'{label}, answer':48} {answer!r}" + ("" if good else f" and {expected!r}"))
    return good


def compare_export(label, program, folder, seed):
    export = folder / "export"
    trained = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = make_tokens(BYTE_VOCABULARY, 4, LENGTH, seed)
    expected = transformers_outputs(trained, tokens, whole_rows(4, LENGTH))
    faults = compare_outputs(f"{label}, export", expected, stepforge_outputs(program, export, tokens, None, folder)[0])
    return faults + (not compare_answers(label, program, trained, export))


def check(program, seed, name):
    with tempfile.TemporaryDirectory() as temporary:
        folder, faults = Path(temporary), 0
        model, _ = write_inputs(folder, name, seed, ROWS, **SIZES.get(name, {}))
        steps, weights = stepforge_steps(program, folder, ["train", folder / "run.toml", f"training.global_batch_size={ROWS}"])
        one_rank = [[step[key] for step in steps] for key in ("loss_metrics/global_avg_loss", "grad_norm")]
        for layout, settings in layouts_of(model.config):
            shutil.rmtree(folder / "run")
            shutil.rmtree(folder / "export")
            label = f"{name}, {layout}"
            faults += not compare(label, *launch_steps(program, folder, 4, ["training.local_batch_size=2", *settings]), *one_rank, weights)
            faults += compare_export(label, program, folder, seed)
        return faults


if __name__ == "__main__":
    run_oracle(__doc__, check)
