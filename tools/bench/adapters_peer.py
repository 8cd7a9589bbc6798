#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A few steps of LoRA with peft and transformers, the same work as a Stepforge run of adapters.py.

    tools/bench/adapters_peer.py KIND CONFIG.toml [section.key=value...]    prints one JSON line: seconds of each step

KIND is lora (the cross-entropy of a row) or dpo (a pair of answers of half a row each, their log-probabilities from whole logits as
in TRL, those of the reference computed before training). The frozen weights are bf16, the adapter's fp32 under autocast, as peft
casts them; no gradient checkpointing, as in Stepforge's run.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from peer import HUGGING_FACE_NAMES
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from work import configuration


def base_model(m):
    left_out = ("family", "rope_theta", "frozen_dtype")
    sizes = {HUGGING_FACE_NAMES.get(name, name): value for name, value in m.items() if name not in left_out}
    config = AutoConfig.for_model(m["family"], **sizes, use_cache=False)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)


def adapted(config):
    adapter = config["adapter"]
    lora = LoraConfig(r=adapter["rank"], lora_alpha=adapter["alpha"], target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base_model(config["model"]), lora).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def log_probs(logits, tokens):
    return torch.gather(logits[:, :-1].log_softmax(-1), 2, tokens[:, 1:, None]).squeeze(-1).sum(-1)


def lora_loss(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def dpo_loss(model, tokens):
    pair = tokens[:, :-1].view(2, -1)
    better, other = log_probs(model(input_ids=pair).logits.float(), pair)
    return -F.logsigmoid(0.1 * (better - other))  # the reference's are constants


def train(kind, config):
    model = adapted(config)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config["optimizer"]["lr"], weight_decay=0.0, fused=True)
    training, vocabulary = config["training"], config["model"]["vocab_size"]
    generator, seconds = torch.Generator().manual_seed(1), []
    for _ in range(training["steps"]):
        tokens = torch.randint(0, vocabulary, (1, training["seq_len"] + 1), generator=generator)
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (dpo_loss if kind == "dpo" else lora_loss)(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
    return {"step_seconds": seconds, "trained": sum(parameter.numel() for parameter in trained)}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    config = configuration(sys.argv[2], sys.argv[3:])
    torch.set_num_threads(config["training"]["threads"])
    torch.manual_seed(0)
    print(json.dumps(train(sys.argv[1], config)))


if __name__ == "__main__":
    main()
