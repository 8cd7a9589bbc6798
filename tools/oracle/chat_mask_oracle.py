#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tokens and loss masks of `stepforge data build --format messages` with transformers'
apply_chat_template(return_assistant_tokens_mask=True) on random conversations.

    pip install transformers tokenizers numpy
    tools/oracle/chat_mask_oracle.py STEPFORGE [NUMBER_OF_CONVERSATIONS]

Each template is read twice: with its {% generation %} blocks, and without them, where the messages have to be found.
The mask of transformers is made with the blocks both times. Exit code 1 with the first differences.
"""
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from indexed_pair import read_pair
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|end_header|>", "<|eot|>", "<s>", "</s>", "[INST]", "[/INST]"]

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
        "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "headers": (
        "{{ bos_token }}{% for m in messages %}"
        "{{ '<|header|>' ~ m.role ~ '<|end_header|>\\n\\n' }}"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{{ '<|eot|>' }}{% endgeneration %}"
        "{% else %}{{ (m.content | trim) ~ '<|eot|>' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|header|>assistant<|end_header|>\\n\\n' }}{% endif %}"
    ),
    "instruct": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% elif m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{% generation %}{{ ' ' + m.content + eos_token }}{% endgeneration %}{% endif %}"
        "{% endfor %}"
    ),
    # Removes the reasoning of all answers but the last.
    "reasoning": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
        "{% if m.role == 'assistant' %}"
        "{% set content = m.content.split('</think>')[-1].lstrip('\\n') %}"
        "{% if loop.last %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{% generation %}{{ content + '<|im_end|>' }}{% endgeneration %}{% endif %}{{ '\\n' }}"
        "{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    # Calls of tools, and thoughts after the last question only, as Qwen3 has them.
    "calls": (
        "{% set ns = namespace(last=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
        "{% if m.role == 'assistant' %}{% generation %}"
        "{% if m.reasoning_content and loop.index0 > ns.last %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}"
        "{{ m.content or '' }}"
        "{% for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' ~ (call.function | tojson) ~ '\\n</tool_call>' }}{% endfor %}"
        "{{ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
        "{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    # Names tools and ends calls in another way than answers, as gpt-oss does.
    "channels": (
        "{% set ns = namespace(tool='') %}"
        "{% for m in messages %}"
        "{% if m.role == 'assistant' and m.tool_calls %}"
        "{{ '<|im_start|>assistant' }}{% generation %}{{ ' to=functions.' + m.tool_calls[0].function.name + '<|header|>' ~ (m.tool_calls[0].function.arguments | tojson) ~ '<|eot|>' }}{% endgeneration %}"
        "{% set ns.tool = m.tool_calls[0].function.name %}"
        "{% elif m.role == 'assistant' %}"
        "{{ '<|im_start|>assistant' }}{% generation %}"
        "{% if loop.last and m.reasoning_content %}{{ '<|header|>analysis ' + m.reasoning_content + '<|end_header|>' }}{% endif %}"
        "{{ '<|header|>final ' + m.content + ('</s>' if loop.last else '<|im_end|>') }}{% endgeneration %}"
        "{% elif m.role == 'tool' %}{{ '<|im_start|>functions.' + ns.tool + '<|header|>' + m.content + '<|im_end|>' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '<|header|>' + m.content + '<|im_end|>' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
    ),
}
WITH_CALLS = ("calls", "channels")
WORDS = "the of and wheel 12 345 Ünï Привет 你好 \U0001f600\U0001f3fd e\u0301 <|im_end|> {{ x }} % # \t  ' \" def f(): return".split(" ") + ["\n", "\n\n", " "]


def byte_level(rng):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = [" ".join(rng.choices(WORDS, k=40)) for _ in range(300)]
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def byte_fallback(rng):
    """As in Llama 2: a normalizer changes the text, so that tokens do not spell it byte by byte."""
    tokenizer = Tokenizer(models.BPE(fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    text = [" ".join(rng.choices([word for word in WORDS if word.isascii()], k=40)) for _ in range(300)]
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=340, special_tokens=["<unk>"], show_progress=False))
    # The tokens of bytes are ordinary ones.
    definition = json.loads(tokenizer.to_str())
    vocabulary = definition["model"]["vocab"]
    vocabulary.update({"<0x%02X>" % byte: len(vocabulary) + byte for byte in range(256)})
    definition["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def call(rng, text):
    arguments = {rng.choice("abc"): rng.choice([text(), 3, 1.5, True, None, [1, "x"], {"y": text()}]) for _ in range(rng.randrange(3))}
    return {"type": "function", "function": {"name": rng.choice(["area", "f", "get_x"]), "arguments": arguments}}


def conversation(rng, answers_with_reasoning, with_calls=False, several=True):
    def text():
        return "".join(rng.choice(["", " "]) + rng.choice(WORDS) for _ in range(rng.randrange(1, 25))).strip() or "x"

    messages = [{"role": "system", "content": text()}] if rng.random() < 0.4 else []
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": text().replace("<|im_end|>", "")})
        reasoning = "<think>" + text() + "</think>\n\n" if answers_with_reasoning and rng.random() < 0.5 else ""
        while with_calls and rng.random() < 0.5:
            made = {"role": "assistant", "content": text().replace("<|im_end|>", "") if several and rng.random() < 0.5 else ""}
            made["tool_calls"] = [call(rng, text) for _ in range(rng.randrange(1, 3) if several else 1)]
            if several and rng.random() < 0.5:
                made["reasoning_content"] = text().replace("<|im_end|>", "")
            messages += [made, {"role": "tool", "content": text().replace("<|im_end|>", "")}]
        messages.append({"role": "assistant", "content": reasoning + text().replace("<|im_end|>", "")})
        if with_calls and rng.random() < 0.5:
            messages[-1]["reasoning_content"] = text().replace("<|im_end|>", "")
    return messages


def in_parts(rng, messages):
    """The same conversation with some contents as lists of parts."""
    made = []
    for message in messages:
        if message["content"] and rng.random() < 0.3:
            at = rng.randrange(len(message["content"]) + 1)
            texts = [message["content"][:at], message["content"][at:]]
            message = {**message, "content": [{"type": "text", "text": text} for text in texts]}
        made.append(message)
    return made


def compare(stepforge, folder, name, template, tokenizer, conversations, rng):
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    expected = []
    for messages in conversations:
        made = theirs.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
        expected.append((made["input_ids"], made["assistant_masks"]))
    different = 0
    for kind, source in [("with blocks", template), ("without blocks", re.sub(r"{% (end)?generation %}", "", template))]:
        theirs.chat_template = source
        theirs.save_pretrained(folder)
        data = folder / "data.jsonl"
        data.write_text("".join(json.dumps({"messages": in_parts(rng, messages)}) + "\n" for messages in conversations))
        subprocess.run([stepforge, "data", "build", "--input", data, "--format", "messages", "--tokenizer", folder, "--output-prefix", folder / "out", "--overwrite"],
                       check=True, stdout=subprocess.DEVNULL)
        ours = read_pair(folder / "out_text_document")
        assert len(ours) == len(expected), (len(ours), len(expected))
        wrong = [i for i in range(len(ours)) if ours[i][0] != expected[i][0] or ours[i][1] != expected[i][1]]
        learned = sum(sum(mask) for _, mask in ours)
        print(f"{name}, {kind}: {len(wrong)} of {len(ours)} conversations differ; {sum(len(t) for t, _ in ours)} tokens, {learned} of them count")
        for i in wrong[:2]:
            print("  ", ascii(conversations[i])[:300], "\n    stepforge   ", ours[i], "\n    transformers", expected[i])
        different += len(wrong)
    return different


def main():
    stepforge, *rest = sys.argv[1:]
    count = int(rest[0]) if rest else 1000
    rng = random.Random(31)
    different = 0
    for make in (byte_level, byte_fallback):
        tokenizer = make(rng)
        for name, template in TEMPLATES.items():
            conversations = [conversation(rng, name == "reasoning", name in WITH_CALLS, name == "calls") for _ in range(count)]
            with tempfile.TemporaryDirectory() as folder:
                different += compare(stepforge, Path(folder), f"{make.__name__}, {name}", template, tokenizer, conversations, rng)
    sys.exit(1 if different else 0)


main()
