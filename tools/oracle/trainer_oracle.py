#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tokenizers that `stepforge tokenizer train` learns with those of Hugging Face's BpeTrainer on the same texts: the
vocabulary with its ids, and the merges in their order.

    pip install tokenizers
    tools/oracle/trainer_oracle.py STEPFORGE [ENGLISH_TEXT] [--rounds N] [--seed N]

Texts: words of few letters (many ties and long runs), all planes of Unicode, code, numbers and, if given, the beginning of
ENGLISH_TEXT; with every pattern, splitting of digits, minimum frequency and several special tokens and vocabulary sizes. Exit code 1
with the first differences.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzzed_texts import fuzzed
from tokenizer_oracle import CODE, GPT4O, LLAMA3, QWEN
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS = {"gpt2": GPT2, "llama3": LLAMA3, "qwen": QWEN, "o200k": GPT4O, r"[^\s]+|\s+": r"[^\s]+|\s+"}
SPECIAL = [[], ["<|endoftext|>"], ["<s>", "</s>", "<pad>"], ["<unk>", "<|im_start|>", "<|im_end|>", "e", "\u00e9"]]


def letters(rng):
    """Few letters: ties, runs, and tokens that several pairs make."""
    alphabet = rng.choice(["ab", "aab ", "a", "abcd \n", "- =", "xyz\u00e9\u6f22 "])
    parts = ["".join(rng.choice(alphabet) * rng.choice([1, 1, 1, 2, 3, 9, 40]) for _ in range(rng.randrange(1, 30))) for _ in range(rng.randrange(1, 120))]
    return rng.choice([" ", "\n", ""]).join(parts)


def texts(rng, english):
    kind = rng.randrange(5)
    if kind == 0:
        return "".join(fuzzed(rng.randrange(20, 800), rng.randrange(1 << 30)))
    if kind == 1:
        return "".join(rng.choice(CODE).format(n=rng.randrange(10 ** rng.randrange(1, 12))) for _ in range(300))
    if kind == 2 and english:
        begin = rng.randrange(max(1, len(english) - 200_000))
        return english[begin : begin + rng.randrange(1000, 200_000)]
    return letters(rng)


def hugging_face(text, pattern, digits, special, size, frequency):
    tokenizer = Tokenizer(models.BPE())
    steps = {"pattern": [], "one": [pre_tokenizers.Digits(individual_digits=True)], "three": [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")]}[digits]
    split = [] if pattern == GPT2 else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, *split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == GPT2)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=frequency, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return json.loads(tokenizer.to_str())


def ours(stepforge, text, folder, name, digits, special, size, frequency):
    Path(folder, "text.txt").write_bytes(text.encode())
    command = [stepforge, "tokenizer", "train", folder + "/text.txt", "--output", folder, "--vocab-size", str(size), "--pattern", name, "--digits", digits]
    command += ["--min-frequency", str(frequency)]
    if special:
        command += ["--special-tokens", *special, "--eos-token", special[0]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(command), done.stderr.decode()))
    return json.loads(Path(folder, "tokenizer.json").read_bytes())


def merges_of(definition):
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in definition["model"]["merges"]]


def with_default_ids(definition):
    """Hugging Face's vocabulary with the ids that Stepforge gives without special tokens: bytes in their order, merges."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    characters = [chr(b if b in printable else 256 + others.index(b)) for b in range(256)]
    learned = [token for token, i in sorted(definition["model"]["vocab"].items(), key=lambda item: item[1])][256:]
    return {token: i for i, token in enumerate(characters + learned)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stepforge")
    parser.add_argument("english", nargs="?")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=12)
    options = parser.parse_args()
    english = Path(options.english).read_text() if options.english else ""
    rng = random.Random(options.seed)
    differences = merges = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            text = texts(rng, english)
            for token in ["<|endoftext|>", *sum(SPECIAL[1:], [])]:
                # Stepforge cuts texts at special tokens; Hugging Face learns their spelling.
                text = text.replace(token, "")
            name = rng.choice(list(PATTERNS))
            special = rng.choice(SPECIAL)
            setting = (rng.choice(["pattern", "one", "three"]), special, 256 + max(1, len(special)) + rng.choice([1, 20, 300, 2000]), rng.choice([1, 2, 2, 5]))
            # Without special tokens, one id is kept for <|endoftext|>.
            digits, _, size, frequency = setting
            theirs = hugging_face(text, PATTERNS[name], digits, special, size - (not special), frequency)
            mine = ours(options.stepforge, text, folder, name, *setting)
            vocab = theirs["model"]["vocab"] if special else with_default_ids(theirs)
            merges += len(merges_of(theirs))
            if mine["model"]["vocab"] == vocab and merges_of(mine) == merges_of(theirs):
                continue
            differences += 1
            pairs = list(zip(merges_of(mine), merges_of(theirs)))
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            print("round %d: %s %s differs from merge %d of %d: stepforge %s, tokenizers %s" % (number, name, setting, at, len(merges_of(theirs)), merges_of(mine)[at : at + 2], merges_of(theirs)[at : at + 2]), flush=True)
    print("%d tokenizers trained by both, %d merges, %d differences" % (options.rounds, merges, differences))
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
