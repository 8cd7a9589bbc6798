#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares twenty training steps of `stepforge train` with the same steps in PyTorch: same weights, tokens, rates, fp32.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/train_oracle.py STEPFORGE

The peer is Hugging Face's model with cross-entropy over all labels of a step, clip_grad_norm_ and
AdamW without weight decay for norms. Each step's loss and gradient norm must agree to 1e-5 relative, and the final weights to 1e-4
of the tensor's largest element: AdamW divides by the size of the gradient, which amplifies the rounding of the smallest gradients.
The learning rates are those that Stepforge logged. Exit code 1 with the differences.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from model_oracle import (
    LATENT_ROPE, LINEAR_ROPE, LLAMA3_ROPE, LONG_ROPE, OSS_ROPE, SLIDING, TWO_ROPES, YARN_ROPE, deepseek_v2, deepseek_v3, gemma2, gemma3, gpt_oss, llama, mistral, mixtral, olmo2, qwen2, qwen2_moe, qwen3, qwen3_moe, randomize, save_model,
)  # fmt: skip
from safetensors.torch import load_file
from transformers.utils import logging

STEPS, ROWS, LENGTH, MICRO_ROWS = 20, 8, 48, 4
LR, WEIGHT_DECAY, MAX_NORM = 1e-3, 0.1, 1.0
TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-4
BYTE_VOCABULARY = 257
SIZES = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "vocab_size": BYTE_VOCABULARY}
MODELS = {
    "llama": lambda **sizes: llama(4, 2, False, **{**SIZES, **sizes}),
    "llama, tied": lambda **sizes: llama(4, 2, True, **{**SIZES, **sizes}),
    "qwen3": lambda **sizes: qwen3(4, 2, 32, False, **{**SIZES, **sizes}),
    "qwen3, tied": lambda **sizes: qwen3(4, 2, 16, True, **{**SIZES, **sizes}),
    "llama, yarn": lambda **sizes: llama(4, 2, False, 10000.0, YARN_ROPE, **{**SIZES, **sizes}),
    "qwen2": lambda **sizes: qwen2(4, 2, **{**SIZES, **SLIDING, **sizes}),
    "mistral": lambda **sizes: mistral(4, 2, sliding_window=11, **{**SIZES, **sizes}),
    "olmo2": lambda **sizes: olmo2(4, 2, **{**SIZES, **sizes}),
    "gemma2": lambda **sizes: gemma2(4, 2, head_dim=20, sliding_window=11, query_pre_attn_scalar=12, attn_logit_softcapping=2.0,
                                     final_logit_softcapping=5.0, **{**SIZES, **sizes}),
    "gemma3": lambda **sizes: gemma3(4, 2, head_dim=20, sliding_window=11, rope_parameters=TWO_ROPES,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"], **{**SIZES, **sizes}),
    "qwen3_moe": lambda **sizes: qwen3_moe(4, 2, head_dim=20, norm_topk_prob=True, mlp_only_layers=[1], **{**SIZES, **sizes}),
    "qwen2_moe": lambda **sizes: qwen2_moe(4, 2, **{**SIZES, **sizes}),
    "mixtral": lambda **sizes: mixtral(4, 2, sliding_window=11, **{**SIZES, **sizes}),
    "deepseek_v2": lambda **sizes: deepseek_v2(4, rope_parameters=LATENT_ROPE, **{**SIZES, **sizes}),
    "deepseek_v3": lambda **sizes: deepseek_v3(4, **{**SIZES, **sizes}),
    "gpt_oss": lambda **sizes: gpt_oss(4, 2, head_dim=20, sliding_window=11, rope_parameters=OSS_ROPE, **{**SIZES, "intermediate_size": 40, **sizes}),
}
# Only trained on one rank. None of their sizes is a multiple of 4 without need.
ODD = {"hidden_size": 54, "intermediate_size": 91, "num_hidden_layers": 3, "vocab_size": 301}
ODD_MODELS = {
    "llama, llama3 rope": lambda: llama(6, 1, True, 5e5, LLAMA3_ROPE, **{**ODD, "hidden_size": 84}),
    "llama, longrope": lambda: llama(5, 1, False, 1e4, LONG_ROPE, **{**ODD, "hidden_size": 40}),
    "llama, linear rope": lambda: llama(3, 3, True, 1e2, LINEAR_ROPE, **ODD),
    "llama, dynamic rope": lambda: llama(9, 3, False, 1e3, {**LINEAR_ROPE, "rope_type": "dynamic"}, **ODD),
    "qwen3, windows": lambda: qwen3(5, 1, 14, False, **SLIDING, **ODD),
    # A usual base would leave biases of keys almost no gradient but rounding, which AdamW makes whole steps of.
    "qwen2, yarn, tied": lambda: qwen2(3, 3, tie_word_embeddings=True, rope_parameters={
        "rope_theta": 1e2, **YARN_ROPE, "attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 0.5}, **ODD),
    "mistral, tied, no window": lambda: mistral(6, 2, head_dim=22, sliding_window=None, tie_word_embeddings=True, **ODD),
    "olmo2, tied, all heads": lambda: olmo2(3, 3, tie_word_embeddings=True, **ODD),
    "gemma2, untied, no caps": lambda: gemma2(6, 3, head_dim=14, sliding_window=33, attn_logit_softcapping=None,
                                              final_logit_softcapping=None, tie_word_embeddings=False, **ODD),
    "gemma3, seven layers": lambda: gemma3(3, 1, head_dim=18, sliding_window=16, final_logit_softcapping=4.0,
                                           **{**ODD, "num_hidden_layers": 7}),
    "qwen3_moe, every second": lambda: qwen3_moe(6, 3, num_experts=9, num_experts_per_tok=4, decoder_sparse_step=2, head_dim=14,
                                                 **{**ODD, "num_hidden_layers": 4}),
    "qwen2_moe, normalized": lambda: qwen2_moe(3, 1, num_experts=7, num_experts_per_tok=3, norm_topk_prob=True, tie_word_embeddings=True,
                                               **ODD),
    "mixtral, tied, 3 of 9": lambda: mixtral(9, 3, num_local_experts=9, num_experts_per_tok=3, tie_word_embeddings=True, **ODD),
    "deepseek_v2, groups": lambda: deepseek_v2(3, q_lora_rank=10, n_routed_experts=12, n_group=4, topk_group=3, num_experts_per_tok=4,
                                               topk_method="group_limited_greedy", first_k_dense_replace=0, routed_scaling_factor=2.5,
                                               qk_nope_head_dim=10, v_head_dim=18, tie_word_embeddings=True, **ODD),
    "deepseek_v3, one group": lambda: deepseek_v3(5, q_lora_rank=None, n_group=1, topk_group=1, num_experts_per_tok=3, n_shared_experts=1,
                                                  norm_topk_prob=False, first_k_dense_replace=2,
                                                  rope_parameters={**LATENT_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0}, **ODD),
    # With 38 hidden units per expert and seed 31, PyTorch's norms differed by 2e-3 from its own in fp64, Stepforge's by 1e-5.
    "gpt_oss, tied, plain rope": lambda: gpt_oss(6, 3, head_dim=14, num_local_experts=9, num_experts_per_tok=3, tie_word_embeddings=True,
                                                 rope_parameters={"rope_type": "default", "rope_theta": 1e4},
                                                 layer_types=["full_attention", "sliding_attention", "full_attention"],
                                                 **{**ODD, "intermediate_size": 22}),
}



ROPE_FIELDS = {"original_max_position_embeddings": "original_max_position"}  # where the names differ


def make_letters(rows=ROWS):
    """Enough letters that no row occurs twice."""
    return torch.randint(97, 123, (STEPS * rows * LENGTH + 200,), generator=torch.Generator().manual_seed(7))


def tokens_of_step(letters, step, rows=ROWS):
    """[rows, LENGTH + 1]: Stepforge's rows of that step."""
    begins = [(step * rows + row) * LENGTH for row in range(rows)]
    return torch.stack([letters[begin : begin + LENGTH + 1] for begin in begins])


def write_text(path, letters):
    """One document."""
    path.write_bytes(bytes(letters.tolist()))


def expert_settings(c):
    names = {"num_local_experts": "n_experts", "num_experts": "n_experts", "num_experts_per_tok": "experts_per_token",
             "moe_intermediate_size": "moe_ffn_dim", "shared_expert_intermediate_size": "shared_expert_dim",
             "norm_topk_prob": "norm_topk_prob", "decoder_sparse_step": "moe_layer_freq", "mlp_only_layers": "dense_layers",
             "n_routed_experts": "n_experts", "n_shared_experts": "n_shared_experts", "n_group": "n_expert_groups", "topk_group": "groups_per_token",
             "routed_scaling_factor": "routed_scaling_factor", "first_k_dense_replace": "first_dense_layers", "q_lora_rank": "q_lora_rank",
             "kv_lora_rank": "kv_lora_rank", "qk_nope_head_dim": "qk_nope_head_dim", "qk_rope_head_dim": "qk_rope_head_dim",
             "v_head_dim": "v_head_dim"}  # fmt: skip
    values = c.to_dict()
    if c.model_type == "deepseek_v2":
        del values["norm_topk_prob"]  # which has no effect
    return [f"{field} = {json.dumps(values[key])}" for key, field in names.items() if values.get(key) is not None]


def further_settings(c):
    """Lines of [model] that only some families have."""
    window = getattr(c, "sliding_window", None)
    lines = []
    if window:
        lines.append(f"sliding_window = {window}")
        if c.model_type not in ("mistral", "mixtral"):
            lines.append(f"layer_types = {json.dumps(c.layer_types)}")
    for key, field in (("query_pre_attn_scalar", "query_pre_attn_scalar"), ("attn_logit_softcapping", "attention_softcap"),
                       ("final_logit_softcapping", "logit_softcap")):
        if getattr(c, key, None):
            lines.append(f"{field} = {getattr(c, key)}")
    lines += expert_settings(c)
    rope = c.rope_parameters
    if "sliding_attention" in rope:
        lines.append(f"rope_local_theta = {rope['sliding_attention']['rope_theta']}")
    rope = rope.get("full_attention", rope)
    if rope["rope_type"] != "default":
        lines += ["[model.rope_scaling]", f'type = "{rope["rope_type"]}"']
        if rope["rope_type"] == "longrope" and "factor" not in rope:
            rope = {**rope, "factor": c.max_position_embeddings / rope["original_max_position_embeddings"]}
        lines += [f"{ROPE_FIELDS.get(key, key)} = {json.dumps(value)}" for key, value in rope.items()
                  if key not in ("rope_type", "rope_theta") and value is not None]  # fmt: skip
    return "\n".join(lines)


def write_config(folder, model):
    c = model.config
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    head_dim = 0 if hasattr(c, "kv_lora_rank") else getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    (folder / "run.toml").write_text(f"""
run_dir = "{folder / 'run'}"
[model]
family = "{c.model_type.removesuffix('_text')}"
dim = {c.hidden_size}
n_layers = {c.num_hidden_layers}
n_heads = {c.num_attention_heads}
n_kv_heads = {c.num_key_value_heads}
head_dim = {head_dim}
ffn_dim = {c.intermediate_size}
vocab_size = {c.vocab_size}
norm_eps = {c.rms_norm_eps}
rope_theta = {rope['rope_theta']}
tie_embeddings = {str(c.tie_word_embeddings).lower()}
max_position = {c.max_position_embeddings}
{further_settings(c)}
[tokenizer]
type = "bytes"
[data]
sources = [{{ path = "{folder / 'text.txt'}" }}]
document = "file"
shuffle = false
cache_dir = "{folder / 'cache'}"
[training]
seq_len = {LENGTH}
local_batch_size = {MICRO_ROWS}
global_batch_size = {ROWS}
steps = {STEPS}
max_norm = {MAX_NORM}
[optimizer]
lr = {LR}
weight_decay = {WEIGHT_DECAY}
[lr_scheduler]
warmup_steps = 4
[checkpoint]
initial_load_path = "{folder / 'model'}"
[metrics]
log_freq = 1
""")


def adamw(model, eps=1e-8):
    named = list(model.named_parameters())
    decayed = [p for name, p in named if p.dim() > 1 and not name.endswith("bias")]
    spared = [p for name, p in named if p.dim() == 1 or name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": spared, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=eps)


def take_step(model, update, rate, loss):
    """The gradient norm before clipping."""
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item()
    for group in update.param_groups:
        group["lr"] = rate
    update.step()
    update.zero_grad()
    return norm


def pytorch_steps(model, letters, rates, rows=ROWS):
    update = adamw(model)
    losses, norms = [], []
    for step, rate in enumerate(rates):
        tokens = tokens_of_step(letters, step, rows)
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        norms.append(take_step(model, update, rate, loss))
        losses.append(loss.item())
    return losses, norms


def worst_relative(got, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(got, expected, strict=True))


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def stepforge_steps(program, folder, arguments):
    """Runs the program; returns the records of its training steps and the final weights."""
    run([program, *arguments])
    run([program, "export", folder / "run", folder / "export"])
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"], load_file(folder / "export/model.safetensors")


def compare(name, steps, weights, losses, norms, peer_weights):
    """Prints one line and returns whether everything agrees."""
    loss_gap = worst_relative([step["loss_metrics/global_avg_loss"] for step in steps], losses)
    norm_gap = worst_relative([step["grad_norm"] for step in steps], norms)
    weight_gap = 0.0
    for key, tensor in peer_weights.items():
        if key in weights:
            weight_gap = max(weight_gap, ((weights[key] - tensor).abs().max() / tensor.abs().max()).item())
    good = len(steps) == STEPS and max(loss_gap, norm_gap) <= TOLERANCE and weight_gap <= WEIGHT_TOLERANCE
    print(f"{'equal ' if good else 'DIFFER'}  {name:26} {len(steps)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}: "
          f"losses {loss_gap:.1e}, gradient norms {norm_gap:.1e}, weights {weight_gap:.1e}")  # fmt: skip
    return good


def write_inputs(folder, name, seed, rows=ROWS, **sizes):
    """The model, its text and the configuration of its training; returns the model and the text."""
    model = randomize({**MODELS, **ODD_MODELS}[name](**sizes), seed)
    # That of the byte tokenizer.
    model.config.eos_token_id = model.generation_config.eos_token_id = BYTE_VOCABULARY - 1
    save_model(model, folder / "model")
    letters = make_letters(rows)
    write_text(folder / "text.txt", letters)
    write_config(folder, model)
    return model, letters


def check(program, seed, name):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, letters = write_inputs(folder, name, seed)
        steps, weights = stepforge_steps(program, folder, ["train", folder / "run.toml"])
        losses, norms = pytorch_steps(model.train(), letters, [step["lr"] for step in steps])
        return 0 if compare(name, steps, weights, losses, norms, model.state_dict()) else 1


def run_oracle(usage, check, models=MODELS):
    """The main function of an oracle that compares `models`: `check(program, seed, name)` returns the number of differing runs."""
    if len(sys.argv) != 2:
        sys.exit(usage)
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    program = Path(sys.argv[1]).resolve()
    sys.exit(1 if sum(check(program, seed, name) for seed, name in enumerate(models)) else 0)


if __name__ == "__main__":
    run_oracle(__doc__, check, [*MODELS, *ODD_MODELS])
