#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares ids and decoded text of whole tokenizers (tokenizer_kinds.py) with Hugging Face `tokenizers`, on fuzzed strings over all
planes of Unicode.

    pip install tokenizers
    tools/oracle/kind_oracle.py STEPFORGE [--strings N] [--tokenizers N] [--name TEXT] [--seed N]

Compared are the ids of every string without and, for a part, with special tokens, and the text that both decode from the ids and from
random ids, with and without special tokens. Exit code 1 with the first differences.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile

from fuzzed_texts import fuzzed
from tokenizer_kinds import kinds
from tokenizers import Tokenizer


def run(stepforge, verb, path, values, *flags):
    """What the program answers, one value for each, or None and its error."""
    command = [stepforge, "tokenizer", verb, "--tokenizer", path, "--jsonl", *flags]
    lines = "".join(json.dumps(value) + "\n" for value in values)
    done = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    answers = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
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


class Comparison:
    def __init__(self, stepforge, path):
        self.stepforge, self.path, self.differences, self.panics = stepforge, path, 0, 0

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


def compare(stepforge, path, texts, rng):
    tokenizer = Tokenizer.from_file(path)
    size = tokenizer.get_vocab_size()
    comparison = Comparison(stepforge, path)
    encode = lambda special: lambda part: [e.ids for e in tokenizer.encode_batch_fast(part, add_special_tokens=special)]
    ids = guarded(encode(False), texts)
    comparison.compare("ids", "encode", texts, ids)
    some = texts[::5]
    comparison.compare("ids with special tokens", "encode", some, guarded(encode(True), some), "--add-special-tokens")
    known = set(tokenizer.get_vocab(with_added_tokens=True).values())
    drawn = sorted(known)
    sequences = [i for i in ids[::2] if i is not None] + [rng.choices(drawn, k=rng.randrange(12)) for _ in range(len(texts) // 4)]
    for skip in (False, True):
        theirs = guarded(lambda part: tokenizer.decode_batch(part, skip_special_tokens=skip), sequences)
        comparison.compare("text", "decode", sequences, theirs, *["--skip-special-tokens"] * skip)
    assert size >= 0
    return comparison


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("stepforge")
    parser.add_argument("--strings", type=int, default=200_000, help="in total")
    parser.add_argument("--tokenizers", type=int, default=60, help="random combinations besides one of each component")
    parser.add_argument("--name", default="", help="only tokenizers whose name contains it")
    parser.add_argument("--seed", type=int, default=12)
    options = parser.parse_args()
    chosen = [(name, kind) for name, kind in kinds(options.tokenizers, large=True) if options.name in name]
    rng = random.Random(options.seed)
    strings = differences = panics = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, kind) in enumerate(chosen):
            path = folder + "/tokenizer.json"
            with open(path, "w", encoding="utf-8") as file:
                json.dump(kind, file)
            count = options.strings // len(chosen) + 1
            result = compare(options.stepforge, path, list(fuzzed(count, options.seed * 1_000_003 + number)), rng)
            strings += count
            differences += result.differences
            panics += result.panics
            if result.differences:
                print("%s: %d differences" % (name, result.differences), flush=True)
    print("%d tokenizers, %d strings, %d differences; tokenizers itself failed for %d" % (len(chosen), strings, differences, panics))
    sys.exit(1 if differences else 0)


main()
