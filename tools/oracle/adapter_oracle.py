#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares twenty training steps of adapters with the same steps of PEFT: same base, A, tokens, rates, fp32.

    pip install torch==2.11.0 transformers peft bitsandbytes safetensors numpy
    tools/oracle/adapter_oracle.py STEPFORGE

Stepforge starts from a folder that PEFT has saved, with a random B, or A of an embedding (adapter.from), so that all gradients count from the first step.
Losses and gradient norms of each step must agree to 1e-5 relative, and A, B and trained biases afterwards to 1e-4 of the tensor's largest element
(train_oracle.py says why). Then PEFT opens the folder that `stepforge export` writes, and transformers the one with --merge: both must
give the logits of `stepforge generate`'s model, and continue a prompt with the same text. Exit code 1 with the differences.

With init_lora_weights = "pissa" both programs begin by themselves, and singular vectors have any sign. Losses and norms do not depend on signs, nor do
products B A, which are compared instead of A and B. PEFT converts its adapter with the first values that it has saved.

With model.frozen_dtype = "nf4" (QLoRA) PEFT trains on the numbers that bitsandbytes makes of its own codes, in blocks of 64, with or without double
quantization: matrices of layers with whole blocks in each row; other frozen weights are rounded to bf16. The mean of the factors is rounded once; the
last bits of the one that compress_statistics computes depend on the number of threads.

PEFT has adapters of single experts only in files of older versions: it reads them as adapters of the stacked tensors of transformers 5, in
which gate and up share A, one below the other, and B is zero outside two blocks. So such a file is written here, and no gradient flows to
these zeros. One A of all experts (adapter.experts = "shared_a") is a file in which they have equal ones; PyTorch then trains one parameter that is
repeated for each expert.
"""
import json
import re
import sys
import tempfile
from pathlib import Path

import torch
from bitsandbytes import functional as bits
from model_oracle import qwen3_moe, randomize, save_model
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn.utils import parametrize
from train_oracle import (
    BYTE_VOCABULARY, LENGTH, LR, MAX_NORM, MODELS, ROWS, SIZES, STEPS, TOLERANCE, WEIGHT_DECAY, WEIGHT_TOLERANCE, make_letters, run, tokens_of_step,
    worst_relative, write_config, write_text,
)  # fmt: skip
from transformers import AutoModelForCausalLM
from transformers.utils import logging

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "all-linear": ("llama", {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}),
    "q and v": ("qwen2", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "rsLoRA, tied head": ("qwen3, tied", {"r": 9, "lora_alpha": 6, "target_modules": ALL, "use_rslora": True}),
    "patterns": ("gemma2", {"r": 4, "lora_alpha": 8, "target_modules": ALL, "rank_pattern": {"k_proj": 2, "layers.1.mlp.up_proj": 7},
                            "alpha_pattern": {"v_proj": 5}}),
    "norms and head too": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ["gate_proj"], "modules_to_save": ["lm_head", "norm"]}),
    "latent attention": ("deepseek_v3", {"r": 4, "lora_alpha": 8, "target_modules": ["kv_b_proj", "q_b_proj", "o_proj", "kv_a_proj_with_mqa"]}),
    "DoRA, all-linear": ("qwen3", {"r": 4, "lora_alpha": 8, "target_modules": ALL, "use_dora": True}),
    "DoRA, q and v": ("qwen2", {"r": 3, "lora_alpha": 9, "target_modules": ["q_proj", "v_proj", "down_proj"], "use_dora": True, "use_rslora": True}),
    "embedding": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "embed_tokens"]}),
    "head": ("qwen3", {"r": 5, "lora_alpha": 10, "target_modules": ["v_proj", "lm_head"]}),
    "capped and scaled": ("gemma2, untied", {"r": 4, "lora_alpha": 4, "target_modules": ["embed_tokens", "lm_head"], "use_rslora": True}),
    "tied, embedding": ("llama, tied", {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj", "embed_tokens"]}),
    "tied, head": ("qwen3, tied", {"r": 3, "lora_alpha": 6, "target_modules": ["lm_head"]}),
    "tied, both": ("gemma2", {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head"], "rank_pattern": {"lm_head": 6}}),
    "4-bit base": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ALL}),
    "4-bit base, tied head": ("qwen3, tied", {"r": 6, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"]}),
    "4-bit base, double quantization": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ALL}),
    "PiSSA": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ALL, "init_lora_weights": "pissa"}),
    "PiSSA, rsLoRA": ("qwen3", {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj", "down_proj"], "use_rslora": True,
                                "init_lora_weights": "pissa"}),
    "one layer": ("olmo2", {"r": 4, "lora_alpha": 8, "target_modules": ["down_proj", "q_proj"], "layers_to_transform": [1]}),
    "experts": ("mixtral", {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "w1", "w2", "w3"]}),
    "experts and attention": ("qwen3_moe, no dense layer", {"r": 3, "lora_alpha": 6, "target_modules": ["o_proj", "gate_proj", "up_proj", "down_proj"]}),
    "experts with one A": ("mixtral", {"r": 4, "lora_alpha": 6, "target_modules": ["w1", "w2", "w3"]}),
    "attention and experts with one A": ("qwen3_moe, no dense layer", {"r": 3, "lora_alpha": 6, "target_modules": ["o_proj", "gate_proj", "up_proj",
                                                                                                                 "down_proj"]}),
    "second matrix of experts": ("mixtral", {"r": 5, "lora_alpha": 5, "target_modules": ["w2"]}),
    "all biases": ("qwen2", {"r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "down_proj"], "bias": "all"}),
    "biases of q and v": ("qwen2", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "up_proj"], "bias": "lora_only"}),
}  # fmt: skip
FAMILIES = {**MODELS, "gemma2, untied": lambda: MODELS["gemma2"](tie_word_embeddings=False),
            "qwen3_moe, no dense layer": lambda: qwen3_moe(4, 2, head_dim=20, norm_topk_prob=True, **SIZES)}
TWICE = "4-bit base, double quantization"
FROZEN_TYPES = {"4-bit base": "nf4", "4-bit base, tied head": "nf4", TWICE: "nf4"}  # fp32 otherwise
BLOCK = 64
B_RATES = {"one layer": 4.0}  # LoRA+


def peft_steps(model, letters, rates, b_rate):
    """As PyTorch trains it; returns losses and norms."""
    groups = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (b_rate if "lora_B" in name else 1.0, WEIGHT_DECAY if parameter.dim() > 1 else 0.0)
            groups.setdefault(key, []).append(parameter)
    update = torch.optim.AdamW([{"params": group, "weight_decay": decay, "factor": factor} for (factor, decay), group in groups.items()],
                               lr=LR, betas=(0.9, 0.95), eps=1e-8)  # fmt: skip
    trained = [parameter for group in groups.values() for parameter in group]
    losses, norms = [], []
    for step, rate in enumerate(rates):
        tokens = tokens_of_step(letters, step)
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, MAX_NORM).item())
        for group in update.param_groups:
            group["lr"] = rate * group["factor"]
        update.step()
        update.zero_grad()
        losses.append(loss.item())
    return losses, norms


def round_factors(state):
    """Those of the state become what 8-bit codes of them stand for."""
    mean = state.absmax.double().mean().float()
    state.absmax = bits.dequantize_blockwise(*bits.quantize_blockwise(state.absmax - mean, blocksize=256)) + mean


def round_frozen(model, is_twice):
    """To the numbers that 4-bit codes stand for, or to bf16."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            continue
        values = parameter.data
        if ".layers." in name and values.dim() == 2 and values.shape[1] % BLOCK == 0:
            codes, state = bits.quantize_4bit(values, blocksize=BLOCK, quant_type="nf4", compress_statistics=False)
            if is_twice:
                round_factors(state)
            parameter.data = bits.dequantize_4bit(codes, state)
        else:
            parameter.data = values.bfloat16().float()


def is_pissa(settings):
    return settings.get("init_lora_weights") == "pissa"


def pissa_arguments(settings):
    """Of a run that begins as PEFT does with these settings."""
    return ["adapter.type=lora", "adapter.init=pissa", f"adapter.rank={settings['r']}", f"adapter.alpha={float(settings['lora_alpha'])}",
            f"adapter.targets={','.join(settings['target_modules'])}", f"adapter.rslora={json.dumps(settings.get('use_rslora', False))}"]  # fmt: skip


def with_adapter(base, folder, settings, seed):
    """In `folder` too, as PEFT saves it."""
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **settings))
    if is_pissa(settings):
        # The first values are no adapter of PiSSA to PEFT, which would take parts of the weights again when it reads them.
        model.peft_config["default"].init_lora_weights = True
        model.save_pretrained(folder / "peft")
        model.peft_config["default"].init_lora_weights = "pissa"
        return model
    generator = torch.Generator().manual_seed(seed)
    for key, parameter in model.named_parameters():
        if "lora_B" in key or "lora_embedding_A" in key:  # what PEFT begins with zeros
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.02
    model.save_pretrained(folder / "peft")
    return model


class OneForAll(torch.nn.Module):
    """One matrix instead of those of all experts, one below the other."""

    def __init__(self, experts):
        super().__init__()
        self.experts = experts

    def forward(self, matrix):
        return matrix.repeat(self.experts, 1)

    def right_inverse(self, matrices):
        first, *others = matrices.chunk(self.experts)
        assert all(torch.equal(first, other) for other in others)
        return first.clone()


def with_expert_adapters(base, folder, settings, seed, one_a):
    """The same of single experts."""
    generator = torch.Generator().manual_seed(seed)
    tensors, shared = {}, {}
    for name, weight in load_file(folder / "model/model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] not in settings["target_modules"]:
            continue
        prefix = f"base_model.model.{module}.lora_"
        a = torch.randn(settings["r"], weight.shape[1], generator=generator) * weight.shape[1] ** -0.5
        if one_a:
            a = shared.setdefault(re.sub(r"experts\.\d+", "experts", module), a).clone()
        tensors[f"{prefix}A.weight"] = a
        tensors[f"{prefix}B.weight"] = torch.randn(weight.shape[0], settings["r"], generator=generator) * 0.02
    (folder / "peft").mkdir()
    save_file(tensors, folder / "peft/adapter_model.safetensors", {"format": "pt"})
    (folder / "peft/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", **settings}))
    model = PeftModel.from_pretrained(base, folder / "peft", is_trainable=True)
    for module in list(model.modules()):
        if one_a and getattr(module, "num_experts", 1) > 1 and hasattr(module, "lora_A"):
            parametrize.register_parametrization(module.lora_A["default"], "weight", OneForAll(module.num_experts))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient, inside=parameter.detach() != 0: gradient * inside)
    return model


def lora_weights(model):
    """By the names of their modules, repeated where experts have one A."""
    return {name: module.weight.detach() for name, module in model.named_modules()
            if "lora_" in name and "parametrizations" not in name and hasattr(module, "weight")}


def products(tensors):
    """Of [A; A0] and [B, -B0] of each module B A and -B0 A0, which have no signs of singular vectors. Their sum is a small difference of
    both, so that it is no measure of their rounding."""
    made = {}
    for key in tensors:
        if "lora_A" not in key:
            continue
        a, b = tensors[key], tensors[key.replace("lora_A", "lora_B")]
        rank = a.shape[0] // 2
        made[key], made[key + " at first"] = b[:, :rank] @ a[:rank], b[:, rank:] @ a[rank:]
    return made


def greedy(model, prompt):
    ids = torch.tensor([list(prompt)])
    return bytes(token for token in model.generate(input_ids=ids, max_new_tokens=20, do_sample=False)[0, len(prompt):].tolist() if token < 256)


def check(program, seed, name):
    family, settings = CASES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        base = randomize(FAMILIES[family](), seed)
        base.config.eos_token_id = base.generation_config.eos_token_id = BYTE_VOCABULARY - 1
        save_model(base, folder / "model")
        letters = make_letters()
        write_text(folder / "text.txt", letters)
        write_config(folder, base)
        torch.manual_seed(seed)
        of_experts, one_a = "experts" in name, "one A" in name
        model = with_expert_adapters(base, folder, settings, seed, one_a) if of_experts else with_adapter(base, folder, settings, seed)
        frozen = FROZEN_TYPES.get(name, "fp32")
        if frozen == "nf4":
            round_frozen(model, name == TWICE)
        start = pissa_arguments(settings) if is_pissa(settings) else [f"adapter.from={folder / 'peft'}"]
        if one_a:
            start.append("adapter.experts=shared_a")
        run([program, "train", folder / "run.toml", *start, f"model.frozen_dtype={frozen}",
             f"model.double_quantization={json.dumps(name == TWICE)}", f"adapter.b_lr_ratio={B_RATES.get(name, 1.0)}"])
        records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        steps = [record for record in records if record["kind"] == "train"]
        losses, norms = peft_steps(model.train(), letters, [step["lr"] for step in steps], B_RATES.get(name, 1.0))
        run([program, "export", folder / "run", folder / "adapter"])
        run([program, "export", folder / "run", folder / "merged", "--merge"])
        opened = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32), folder / "adapter").eval()
        if not of_experts:
            model.save_pretrained(folder / "expected", path_initial_model_for_weight_conversion=str(folder / "peft") if is_pissa(settings) else None)
        # PEFT does not save what it has read of single experts under their names.
        expected, got = (load_file(folder / part / "adapter_model.safetensors") for part in ("peft" if of_experts else "expected", "adapter"))
        # PEFT saves copies of the frozen weights beside adapters of embedding and head.
        expected = {key: value for key, value in expected.items() if not key.endswith(".base_layer.weight")}
        same_names = expected.keys() == got.keys()
        if of_experts:
            expected, got = lora_weights(model), lora_weights(opened)
        if is_pissa(settings):
            expected, got = products(expected), products(got)
        weights = max((got[key] - expected[key]).abs().max().item() / expected[key].abs().max().item() for key in expected) if same_names else 9.9
        loss_gap = worst_relative([step["loss_metrics/global_avg_loss"] for step in steps], losses)
        norm_gap = worst_relative([step["grad_norm"] for step in steps], norms)
        merged = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32).eval()
        tokens = tokens_of_step(letters, 0)[:, :-1]
        with torch.no_grad():
            logits, of_merged, of_model = opened(tokens).logits, merged(tokens).logits, model.eval()(tokens).logits
        scale = logits.abs().max()
        logit_gap = (logits - of_merged).abs().max().item() / scale.item()
        if frozen == "fp32":  # an adapter of rounded weights leaves the run beside those of the model
            logit_gap = max(logit_gap, (logits - of_model).abs().max().item() / scale.item() * 0.01)
        prompt = bytes(letters[:9].tolist())
        texts = {greedy(opened, prompt), greedy(merged, prompt)}
        good = (len(steps) == STEPS and same_names and max(loss_gap, norm_gap) <= TOLERANCE and weights <= WEIGHT_TOLERANCE
                and logit_gap <= 2e-5 and len(texts) == 1)  # fmt: skip
        print(f"{'equal ' if good else 'DIFFER'}  {name:22} {family:12} loss {losses[0]:.3f} to {losses[-1]:.3f}: losses {loss_gap:.1e}, gradient norms "
              f"{norm_gap:.1e}, A and B {weights:.1e}, logits {logit_gap:.1e}{'' if same_names else ', other names'}")  # fmt: skip
        if not same_names:
            print("   ", sorted(expected.keys() ^ got.keys())[:6])
        return good


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    program = Path(sys.argv[1]).resolve()
    results = [check(program, seed, name) for seed, name in enumerate(CASES)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
