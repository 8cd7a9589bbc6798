#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains on four ranks (tensor x context parallelism 2 x 2), exports, and compares the logits of transformers with those of `stepforge eval`.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/export_oracle.py STEPFORGE

The tolerance is that of model_oracle.py. Exit code 1 with the differences.
"""
import sys
import tempfile
from pathlib import Path

import torch
from fsdp_oracle import ROWS
from model_oracle import compare, make_tokens, stepforge_outputs, transformers_outputs, whole_rows
from train_oracle import BYTE_VOCABULARY, LENGTH, run, run_oracle, write_inputs
from transformers import AutoModelForCausalLM


def check(program, seed, name):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        original, _ = write_inputs(folder, name, seed, ROWS)
        # Norms of all heads together are not divided.
        plan = ['parallelism.tensor_parallel_plan=[{ pattern = "attention", style = "replicate" }]'] if name == "olmo2" else []
        run([
            program, "launch", "--nproc", "4", "--log-dir", folder / "logs", "train", folder / "run.toml", "training.threads=1",
            "training.steps=3", f"training.global_batch_size={ROWS}", "parallelism.tensor_parallel_degree=2",
            "parallelism.context_parallel_degree=2", *plan,
        ])  # fmt: skip
        run([program, "export", folder / "run", folder / "export"])
        trained = AutoModelForCausalLM.from_pretrained(folder / "export", dtype=torch.float32, attn_implementation="eager").eval()
        moved = max((new - old).abs().max().item() for new, old in zip(trained.parameters(), original.parameters(), strict=True))
        if moved == 0.0:
            sys.exit(f"{name}: training changed no weight")
        tokens = make_tokens(BYTE_VOCABULARY, 4, LENGTH, seed)
        expected = transformers_outputs(trained, tokens, whole_rows(4, LENGTH))
        return compare(f"{name}, trained at 2 x 2", expected, stepforge_outputs(program, folder / "export", tokens, None, folder))


if __name__ == "__main__":
    run_oracle(__doc__, check)
