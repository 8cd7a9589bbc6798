#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares logits, per-token losses and gradients of `stepforge eval` with those of Hugging Face `transformers`, fp32 on the CPU.

    pip install torch==2.11.0 transformers safetensors numpy
    tools/oracle/model_oracle.py STEPFORGE
    tools/oracle/model_oracle.py --record FOLDER      writes tests/golden/models: tiny models, tokens, outputs and gradients of transformers

Models are random and tiny. Each runs on whole rows, and on rows packed with several documents, which transformers gets one at a
time. Logits and losses may differ by 2e-5 of the largest |logit|, the gradient of each tensor by 1e-4 of its largest element. Then each folder goes through `stepforge import` and
`stepforge export`, whose tensors must be bit-equal. A folder with stacked experts must give the same bits as one with a tensor for each.
Exit code 1 with the differences.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM, DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM,
    MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM, Qwen2Config, Qwen2ForCausalLM,
    Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM,
)  # fmt: skip
from transformers.utils import logging

TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-4
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
OSS_ROPE = {**YARN_ROPE, "rope_theta": 150000.0, "truncate": False}
LONG_ROPE = {"rope_type": "longrope", "original_max_position_embeddings": 16, "short_factor": [1.0, 1.1, 1.3, 1.7],
             "long_factor": [1.0, 2.5, 6.0, 11.5]}
LINEAR_ROPE = {"rope_type": "linear", "factor": 4.0}
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 256}


def llama(heads, kv_heads, tied, theta=10000.0, scaling=None, **sizes):
    rope = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
    config = LlamaConfig(
        **{**SMALL, **sizes}, num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=tied, rope_parameters=rope,
        rms_norm_eps=1e-5, attn_implementation="eager", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def qwen3(heads, kv_heads, head_dim, tied, **sizes):
    config = Qwen3Config(
        **{**SMALL, **sizes}, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, tie_word_embeddings=tied,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"}, rms_norm_eps=1e-6, attn_implementation="eager",
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


def other(config_class, model_class, heads, kv_heads, **settings):
    """A model of one of the other families; sizes and all else by their names in config.json."""
    config = config_class(
        **{**SMALL, **settings}, num_attention_heads=heads, num_key_value_heads=kv_heads, attn_implementation="eager", bos_token_id=1,
        eos_token_id=2, pad_token_id=None,
    )  # fmt: skip
    return model_class(config)


def qwen2(heads, kv_heads, **settings):
    return other(Qwen2Config, Qwen2ForCausalLM, heads, kv_heads, **settings)


def mistral(heads, kv_heads, **settings):
    return other(MistralConfig, MistralForCausalLM, heads, kv_heads, **settings)


def olmo2(heads, kv_heads, **settings):
    return other(Olmo2Config, Olmo2ForCausalLM, heads, kv_heads, **settings)


def gemma2(heads, kv_heads, **settings):
    return other(Gemma2Config, Gemma2ForCausalLM, heads, kv_heads, **settings)


def gemma3(heads, kv_heads, **settings):
    return other(Gemma3TextConfig, Gemma3ForCausalLM, heads, kv_heads, **settings)


def qwen3_moe(heads, kv_heads, **settings):
    return other(Qwen3MoeConfig, Qwen3MoeForCausalLM, heads, kv_heads, **{**EXPERTS, "num_experts": 6, "moe_intermediate_size": 20, **settings})


def qwen2_moe(heads, kv_heads, **settings):
    sizes = {"num_experts": 6, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
    return other(Qwen2MoeConfig, Qwen2MoeForCausalLM, heads, kv_heads, **{**EXPERTS, **sizes, **settings})


def mixtral(heads, kv_heads, **settings):
    return other(MixtralConfig, MixtralForCausalLM, heads, kv_heads, **{**EXPERTS, "num_local_experts": 5, **settings})


def deepseek_v2(heads, **settings):
    return other(DeepseekV2Config, DeepseekV2ForCausalLM, heads, heads, **{**EXPERTS, **LATENTS, "q_lora_rank": None, **settings})


def deepseek_v3(heads, **settings):
    groups = {"n_group": 3, "topk_group": 2, "num_mtp_layers": 0}
    return other(DeepseekV3Config, DeepseekV3ForCausalLM, heads, heads, **{**EXPERTS, **LATENTS, "q_lora_rank": 18, **groups, **settings})


LATENTS = {"kv_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 7, "n_routed_experts": 6, "n_shared_experts": 2,
           "moe_intermediate_size": 20, "first_k_dense_replace": 1}
# The scaling of published models.
LATENT_ROPE = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32, "mscale": 0.707, "mscale_all_dim": 0.707,
               "beta_fast": 32, "beta_slow": 1, "rope_theta": 10000.0}
def gpt_oss(heads, kv_heads, **settings):
    sizes = {"num_local_experts": 5, "sliding_window": 7}
    return other(GptOssConfig, GptOssForCausalLM, heads, kv_heads, **{**EXPERTS, **sizes, **settings})


EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
SLIDING = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
TWO_ROPES = {
    "full_attention": {"rope_theta": 1e5, **LINEAR_ROPE}, "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"},
}  # fmt: skip
GOLDEN = {
    "llama3": lambda: llama(4, 2, False, 500000.0, LLAMA3_ROPE),
    "llama_tied": lambda: llama(4, 2, True),
    "qwen3": lambda: qwen3(4, 2, 16, True),
    "llama_yarn": lambda: llama(4, 2, True, 10000.0, YARN_ROPE),
    "qwen2": lambda: qwen2(4, 2, tie_word_embeddings=True, **SLIDING),
    "mistral": lambda: mistral(4, 2, tie_word_embeddings=True, sliding_window=7),
    "olmo2": lambda: olmo2(4, 2, tie_word_embeddings=True),
    "gemma2": lambda: gemma2(4, 2, head_dim=10, sliding_window=7, query_pre_attn_scalar=12, attn_logit_softcapping=2.0,
                             final_logit_softcapping=5.0),
    "gemma3": lambda: gemma3(4, 2, head_dim=10, sliding_window=7, query_pre_attn_scalar=12, rope_parameters=TWO_ROPES,
                             layer_types=["sliding_attention", "full_attention"]),
    "qwen3_moe": lambda: qwen3_moe(4, 2, head_dim=10, norm_topk_prob=True, tie_word_embeddings=True, mlp_only_layers=[0]),
    "qwen2_moe": lambda: qwen2_moe(4, 2, tie_word_embeddings=True, num_hidden_layers=1),
    "mixtral": lambda: mixtral(4, 2, tie_word_embeddings=True, num_hidden_layers=1, sliding_window=7),
    "deepseek_v2": lambda: deepseek_v2(4, rope_parameters=LATENT_ROPE, tie_word_embeddings=True),
    "deepseek_v3": lambda: deepseek_v3(4, tie_word_embeddings=True),
    "gpt_oss": lambda: gpt_oss(4, 2, head_dim=10, intermediate_size=20, tie_word_embeddings=True, num_local_experts=3, rope_parameters=OSS_ROPE),
    "llama_longrope": lambda: llama(4, 2, True, 10000.0, LONG_ROPE),
}
MODELS = {
    **GOLDEN,
    "llama2, all heads": lambda: llama(4, 4, False),
    "llama, one key head, wider": lambda: llama(8, 1, False, hidden_size=128, intermediate_size=200, num_hidden_layers=4, vocab_size=1000),
    "llama3.1, long wavelengths": lambda: llama(2, 2, False, 500000.0, LLAMA3_ROPE, hidden_size=128, num_hidden_layers=3),
    "llama, linear rope": lambda: llama(4, 2, True, 10000.0, LINEAR_ROPE),
    "llama, dynamic rope": lambda: llama(4, 2, True, 10000.0, {**LINEAR_ROPE, "rope_type": "dynamic"}),
    "llama, yarn with all settings": lambda: llama(
        2, 1, True, 5e5, {**YARN_ROPE, "beta_fast": 4.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False},
        hidden_size=128, num_hidden_layers=3),
    "llama, longrope in short rows": lambda: llama(
        4, 2, True, 10000.0, {**LONG_ROPE, "original_max_position_embeddings": 128, "attention_factor": 1.2}),
    "qwen2, untied, wider": lambda: qwen2(6, 3, hidden_size=96, intermediate_size=176, num_hidden_layers=3, vocab_size=1000),
    "qwen2, yarn": lambda: qwen2(3, 1, hidden_size=96, rope_parameters={"rope_theta": 1e6, **YARN_ROPE, "attention_factor": 1.3}),
    "qwen3, windows": lambda: qwen3(4, 1, 10, True, num_hidden_layers=3, **SLIDING),
    "mistral, no window": lambda: mistral(6, 2, hidden_size=96, head_dim=20, sliding_window=None, num_hidden_layers=3),
    "mistral, longer window": lambda: mistral(8, 1, hidden_size=128, intermediate_size=200, sliding_window=50, vocab_size=1000),
    "olmo2, all heads": lambda: olmo2(6, 6, hidden_size=96, intermediate_size=176, num_hidden_layers=4, vocab_size=1000),
    "gemma2, no caps": lambda: gemma2(6, 3, hidden_size=96, head_dim=32, num_hidden_layers=3, attn_logit_softcapping=None,
                                      final_logit_softcapping=None, tie_word_embeddings=False, sliding_window=33),
    "gemma2, published caps": lambda: gemma2(8, 1, hidden_size=128, head_dim=24, num_hidden_layers=4, vocab_size=1000, sliding_window=49),
    "gemma3, seven layers": lambda: gemma3(3, 1, hidden_size=96, head_dim=36, num_hidden_layers=7, vocab_size=1000, sliding_window=16,
                                           final_logit_softcapping=4.0),
    "qwen3_moe, every second layer": lambda: qwen3_moe(6, 3, hidden_size=96, num_hidden_layers=4, num_experts=16, num_experts_per_tok=4,
                                                       decoder_sparse_step=2, vocab_size=1000),
    "qwen3_moe, all experts": lambda: qwen3_moe(4, 1, num_experts_per_tok=6, norm_topk_prob=True, num_hidden_layers=3),
    "qwen2_moe, normalized": lambda: qwen2_moe(3, 1, hidden_size=96, norm_topk_prob=True, num_experts_per_tok=3),
    "mixtral, one of nine": lambda: mixtral(6, 3, hidden_size=96, num_hidden_layers=3, num_local_experts=9, num_experts_per_tok=1),
    "deepseek_v2, groups": lambda: deepseek_v2(3, hidden_size=96, q_lora_rank=10, n_routed_experts=12, n_group=4, topk_group=3,
                                               topk_method="group_limited_greedy", num_experts_per_tok=4, first_k_dense_replace=0,
                                               routed_scaling_factor=16.0, qk_nope_head_dim=32, v_head_dim=48, num_hidden_layers=3),
    "deepseek_v3, yarn, not normalized": lambda: deepseek_v3(
        6, hidden_size=96, norm_topk_prob=False, routed_scaling_factor=1.0, first_k_dense_replace=2, num_hidden_layers=4, vocab_size=1000,
        n_routed_experts=16, n_group=4, topk_group=2, num_experts_per_tok=5, qk_rope_head_dim=16, v_head_dim=24,
        rope_parameters={**LATENT_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 5e5}),
    "deepseek_v3, one group, no latent of queries": lambda: deepseek_v3(5, hidden_size=80, q_lora_rank=None, n_group=1, topk_group=1,
                                                                        num_experts_per_tok=6, n_shared_experts=1),
    "gpt_oss, one of nine": lambda: gpt_oss(6, 3, hidden_size=96, intermediate_size=64, head_dim=20, num_hidden_layers=3, num_local_experts=9, num_experts_per_tok=1,
                                            vocab_size=1000),
    # Few values near the limits of the activation, where the gradient jumps.
    "gpt_oss, all experts, no window": lambda: gpt_oss(8, 1, head_dim=32, intermediate_size=24, num_local_experts=3, num_experts_per_tok=3,
                                                       rope_parameters=OSS_ROPE, layer_types=["full_attention"] * 2),
    "qwen3, untied, wider": lambda: qwen3(6, 3, 32, False, hidden_size=96, intermediate_size=176, num_hidden_layers=4, vocab_size=1000),
}


def randomize(model, seed):
    """Weights far from their initial scale, so that a mistake anywhere shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(("norm.weight", "layernorm.weight")):
                noise = 0.3 * noise if model.config.model_type.startswith("gemma") else 1 + 0.3 * noise
            elif name.endswith(("bias", "sinks")):
                noise = 0.5 * noise
            elif name.endswith("experts.gate_up_proj") and model.config.model_type == "gpt_oss":
                noise = noise * (40.0 / parameter.shape[-2]) ** 0.5  # so that some reach the limits of the activation
            else:
                noise = noise * (2.0 / parameter.shape[-1]) ** 0.5
            parameter.copy_(noise)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    return model.eval()


def make_tokens(vocab, rows, length, seed):
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def make_cu_seqlens(rows, length):
    """cu_seqlens of documents of many lengths, including a single token; every row's end is a border."""
    inside = [[1, 4, length // 2, length // 2 + 1], [], [length // 3], [length - 1]]
    return torch.tensor([0] + [row * length + b for row in range(rows) for b in [*inside[row % 4], length]], dtype=torch.int32)


def whole_rows(rows, length):
    return torch.arange(0, rows * length + 1, length, dtype=torch.int32)


def documents_of(model, rows, length):
    """Longrope chooses its factors by the length of a call, in Stepforge by that of a row: there a row is one document."""
    is_longrope = (model.config.rope_parameters or {}).get("rope_type") == "longrope"
    return (whole_rows if is_longrope else make_cu_seqlens)(rows, length)


def transformers_outputs(model, tokens, borders):
    """Logits and losses, one document at a time; the last token of a document has no label: loss 0."""
    flat = tokens.flatten().long()
    logits = torch.zeros(len(flat), model.config.vocab_size)
    loss = torch.zeros(len(flat))
    with torch.no_grad():
        for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist()):
            logits[begin:end] = model(flat[None, begin:end]).logits[0]
            if end - begin > 1:
                loss[begin : end - 1] = torch.nn.functional.cross_entropy(logits[begin : end - 1], flat[begin + 1 : end], reduction="none")
    return {"logits": logits.view(*tokens.shape, -1).contiguous(), "token_loss": loss.view(tokens.shape)}


def transformers_gradients(model, tokens, borders, folder):
    """The gradients of the mean loss over all labels, by the names of the model's file: saved in place of its weights, because
    transformers keeps some tensors together that are apart in the file. Destroys the model."""
    flat = tokens.flatten().long()
    documents = [(begin, end) for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist()) if end - begin > 1]
    labels = sum(end - begin - 1 for begin, end in documents)
    for begin, end in documents:
        logits = model(flat[None, begin:end]).logits[0, :-1]
        (torch.nn.functional.cross_entropy(logits, flat[begin + 1 : end], reduction="sum") / labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    model.save_pretrained(folder)
    state = {name for name, _ in model.named_buffers()}
    return {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if name not in state}


def save_model(model, folder, **options):
    model.save_pretrained(folder, **options)
    # Models were published with older rope keys, which must be read too.
    config_file = Path(folder) / "config.json"
    config = json.loads(config_file.read_text())
    rope = config.pop("rope_parameters", None)
    if rope and isinstance(model, (LlamaForCausalLM, MistralForCausalLM, Olmo2ForCausalLM)):
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    elif rope:
        config["rope_parameters"] = rope
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def stepforge_outputs(program, folder, tokens, borders, work):
    inputs, output = work / "tokens.safetensors", work / "out.safetensors"
    save_file({"tokens": tokens, **({"cu_seqlens": borders} if borders is not None else {})}, inputs)
    gradients = work / "gradients.safetensors"
    for file in (output, gradients):
        file.unlink(missing_ok=True)
    command = [program, "eval", folder, "--tokens", inputs, "--logits", "--output", output, "--gradients", gradients]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return load_file(output), load_file(gradients)


def compare(name, expected, got):
    scale = expected["logits"].abs().max().item()
    worst = 0.0
    for key, tensor in expected.items():
        if key not in got or got[key].shape != tensor.shape or got[key].dtype != torch.float32:
            print(f"  {name}: {key} is missing or has a different shape or type")
            return 1
        worst = max(worst, (got[key] - tensor).abs().max().item() / scale)
    good = worst <= TOLERANCE
    print(f"{'equal ' if good else 'DIFFER'}  {name:48} {worst:.1e} of the largest |logit| {scale:.2f}")
    return 0 if good else 1


def compare_gradients(name, expected, got):
    if expected.keys() != got.keys():
        print(f"DIFFER  {name}: {' '.join(sorted(expected.keys() ^ got.keys()))} is not in both")
        return 1
    # A gradient that is 0 in exact arithmetic, such as that of a router which chooses one expert, is rounding in both.
    least = 1e-3 * max(tensor.abs().max().item() for tensor in expected.values())
    gaps = {key: (got[key] - tensor).abs().max().item() / max(tensor.abs().max().item(), least) for key, tensor in expected.items()}
    worst = max(gaps, key=gaps.get)
    good = gaps[worst] <= GRADIENT_TOLERANCE
    print(f"{'equal ' if good else 'DIFFER'}  {name + ', gradients':48} {gaps[worst]:.1e} of the largest element of {worst}")
    return 0 if good else 1


def compare_tensors(name, expected, folder):
    before, after = load_file(expected / "model.safetensors"), load_file(folder / "model.safetensors")
    wrong = sorted(set(before) ^ set(after)) + [key for key in set(before) & set(after) if not torch.equal(before[key], after[key])]
    print(f"{'DIFFER' if wrong else 'equal '}  {name:48} {len(before)} tensors {' '.join(wrong)}")
    return 1 if wrong else 0


def compare_export(program, name, folder, work, expected=None):
    """Whether an export of the imported folder has the tensors of `expected`, by default its own."""
    run, export = work / "run", work / "export"
    subprocess.run([program, "import", folder, run], check=True, capture_output=True)
    subprocess.run([program, "export", run / "checkpoint" / "step-0", export], check=True, capture_output=True)
    return compare_tensors(name + ", imported and exported", expected or folder, export)


def compare_stacked(program, name, model, folder, tokens, borders, results):
    """Experts as transformers keeps them in memory, all of a layer in two tensors. `results`: of the same weights in `folder`."""
    stacked = folder.parent / "stacked"
    save_model(model, stacked, save_original_format=False)
    if not any(key.endswith("mlp.experts.gate_up_proj") for key in load_file(stacked / "model.safetensors")):
        print(f"DIFFER  {name}: transformers has not stacked the experts")
        return 1
    again = stepforge_outputs(program, stacked, tokens, borders, stacked)
    good = all(a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(again, results))
    print(f"{'equal ' if good else 'DIFFER'}  {name + ', stacked experts':48} logits, losses and gradients")
    faults = compare_export(program, name + ", stacked experts", stacked, stacked, folder)
    command = [program, "export", "--stacked-experts", stacked / "run/checkpoint/step-0", stacked / "again"]
    subprocess.run(command, check=True, capture_output=True)
    return (0 if good else 1) + faults + compare_tensors(name + ", exported with stacked experts", stacked, stacked / "again")


def compare_mxfp4(program, name, folder, work):
    """Weights of experts as MXFP4, which import reads as transformers does."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(5)
    packed = work / "packed"
    packed.mkdir()
    stored = dict(tensors)
    for key, tensor in tensors.items():
        if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, inputs, outputs = tensor.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(110, 135, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
        del stored[key]
        stored[key + "_blocks"], stored[key + "_scales"] = blocks, scales
        tensors[key] = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    subprocess.run([program, "import", packed, work / "packed-run"], check=True, capture_output=True)
    subprocess.run([program, "export", work / "packed-run/checkpoint/step-0", work / "unpacked"], check=True, capture_output=True)
    unpacked = load_file(work / "unpacked/model.safetensors")
    wrong = [key for key in tensors if key not in unpacked or not torch.equal(tensors[key], unpacked[key])]
    print(f"{'DIFFER' if wrong else 'equal '}  {name + ', imported from MXFP4':48} {len(tensors)} tensors {' '.join(wrong)}")
    return 1 if wrong else 0


def exported_folder_loads(name, folder, work, tokens):
    """Whether transformers gives the same logits for our export as for the original."""
    with torch.no_grad():
        ours, original = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()(tokens.long()).logits
            for path in (work / "export", folder)
        )
    good = torch.equal(ours, original)
    print(f"{'equal ' if good else 'DIFFER'}  {name + ', export read by transformers':48}")
    return 0 if good else 1


def check(program):
    faults = 0
    for seed, (name, make) in enumerate(MODELS.items()):
        with tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            model = randomize(make(), seed)
            folder = work / "model"
            save_model(model, folder)
            rows, length = 4, 96
            tokens, borders = make_tokens(model.config.vocab_size, rows, length, seed), documents_of(model, rows, length)
            expected = transformers_outputs(model, tokens, whole_rows(rows, length))
            faults += compare(name, expected, stepforge_outputs(program, folder, tokens, None, work)[0])
            expected = transformers_outputs(model, tokens, borders)
            outputs, gradients = stepforge_outputs(program, folder, tokens, borders, work)
            faults += compare(name + ", packed", expected, outputs)
            if hasattr(model.config, "num_experts_per_tok") and model.config.model_type != "gpt_oss":
                faults += compare_stacked(program, name, model, folder, tokens, borders, (outputs, gradients))
            faults += compare_gradients(name, transformers_gradients(model, tokens, borders, work / "gradients"), gradients)
            faults += compare_export(program, name, folder, work)
            if model.config.model_type == "gpt_oss" and model.config.hidden_size % 32 == 0 and model.config.intermediate_size % 32 == 0:
                faults += compare_mxfp4(program, name, folder, work)
            faults += exported_folder_loads(name, folder, work, tokens)
    return faults


def record(target):
    for seed, (name, make) in enumerate(GOLDEN.items()):
        model = randomize(make(), seed)
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        save_model(model, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        rows, length = 2, 24
        tokens, borders = make_tokens(model.config.vocab_size, rows, length, seed), documents_of(model, rows, length)
        save_file({"tokens": tokens, "cu_seqlens": borders}, folder / "tokens.safetensors")
        save_file(transformers_outputs(model, tokens, borders), folder / "expected.safetensors")
        with tempfile.TemporaryDirectory() as temporary:
            save_file(transformers_gradients(model, tokens, borders, Path(temporary)), folder / "gradients.safetensors")
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes")


def main():
    torch.set_num_threads(2)
    logging.disable_progress_bar()
    if len(sys.argv) == 3 and sys.argv[1] == "--record":
        record(Path(sys.argv[2]))
    elif len(sys.argv) == 2:
        sys.exit(1 if check(Path(sys.argv[1]).resolve()) else 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
