#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A base model, whose end of text is not that of conversations, is fine-tuned on 200 conversations in ChatML: it must answer and stop in
`stepforge chat`, in the export under transformers' generate, and in the export of a run that starts from that export.

    tools/oracle/finetune_oracle.py STEPFORGE

Exit code 1 with the first difference.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAIRS = [("red", "apple"), ("yellow", "lemon"), ("green", "leaf"), ("blue", "sky")]


def make_base(folder):
    """A random model with the tokens of ChatML, but without a template, as base models have them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    torch.manual_seed(7)
    end = tokenizer.token_to_id("<|endoftext|>")
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=end))
    model.save_pretrained(folder)


def run(stepforge, *args, text=None):
    return subprocess.run([stepforge, *map(str, args)], input=text, check=True, capture_output=True, text=True).stdout


def train(stepforge, source, run_dir, data, steps, rate):
    run(stepforge, "train", f"model.from={source}", f"run_dir={run_dir}", f'data.sources=[{{path="{data}",format="messages"}}]', "data.chat_template=chatml",
        "training.seq_len=64", "training.local_batch_size=8", f"training.steps={steps}", f"optimizer.lr={rate}", "lr_scheduler.warmup_steps=5")


def answers_of_transformers(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    answers = []
    for question, _ in PAIRS:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**ids, max_new_tokens=40, do_sample=False)[0, ids["input_ids"].shape[1]:]
        answers.append(tokenizer.decode(made))
    return answers


def main():
    stepforge = sys.argv[1]
    different = []

    def check(what, found, expected):
        print(f"{what}: {'equal' if found == expected else 'differs'}")
        if found != expected:
            different.append((what, found, expected))

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_base(work / "base")
        turn = lambda role, content: {"role": role, "content": content}
        talks = [{"messages": [turn("user", q), turn("assistant", a)]} for q, a in PAIRS * 50]
        (work / "talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
        train(stepforge, work / "base", work / "run", work / "talks.jsonl", 150, 3e-3)
        for question, answer in PAIRS:
            said = run(stepforge, "chat", work / "run", "--max-tokens", 40, "--temperature", 0, text=question + "\n")
            check(f"chat, {question}", said.strip(), answer)
        run(stepforge, "export", work / "run", work / "export")
        train(stepforge, work / "export", work / "again", work / "talks.jsonl", 2, 1e-6)
        run(stepforge, "export", work / "again", work / "second")
        for name in ("export", "second"):
            check(f"transformers, {name}", answers_of_transformers(work / name), [answer + "<|im_end|>" for _, answer in PAIRS])
            ends = json.loads((work / name / "generation_config.json").read_text())["eos_token_id"]
            check(f"ends of text, {name}", ends, [256, 258])
            said = run(stepforge, "chat", work / name, "--max-tokens", 40, "--temperature", 0, text="red\n")
            check(f"chat, {name}", said.strip(), "apple")
    for what, found, expected in different:
        print(f"{what}:\n  found    {found!r}\n  expected {expected!r}")
    sys.exit(1 if different else 0)


main()
