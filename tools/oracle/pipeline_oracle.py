#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the token ids of `stepforge tokenizer encode` with those of Hugging Face `tokenizers` for tokenizers that differ in one
component each (tokenizer_pipelines.py), on fuzzed strings over all planes of Unicode.

    pip install tokenizers
    tools/oracle/pipeline_oracle.py STEPFORGE BASE_TOKENIZER_JSON [NUMBER_OF_TEXTS [NAME_PREFIX]]

Exit code 1 with the first differences.
"""
import json
import subprocess
import sys
import tempfile

from fuzzed_texts import CODE_POINTS, fuzzed
from tokenizer_pipelines import write_pipelines
from tokenizers import Tokenizer


def every_code_point():
    """Each character between others; of the private planes only some."""
    for i in range(0, len(CODE_POINTS), 40):
        if i < 0x34000 or i % 1600 == 0:
            yield "".join("%sa %s1" % (chr(c), chr(c)) for c in CODE_POINTS[i : i + 40])


def compare(stepforge, path, texts):
    """The number of texts with other ids."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    command = [stepforge, "tokenizer", "encode", "--tokenizer", path, "--jsonl"]
    done = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE)
    if done.returncode != 0:
        print("%s: exit code %d" % (path, done.returncode))
        return 1
    theirs = Tokenizer.from_file(path).encode_batch(texts, add_special_tokens=False)
    different = [(t, o, h.ids) for t, o, h in zip(texts, map(json.loads, done.stdout.decode().splitlines()), theirs) if o != h.ids]
    print("%s: %d of %d texts differ" % (path.rsplit("/", 1)[-1], len(different), len(texts)))
    for text, ours, their in sorted(different, key=lambda case: len(case[0]))[:2]:
        print("  %s\n    stepforge  %s\n    tokenizers %s" % (ascii(text[:120]), ours[:40], their[:40]))
    return len(different)


def main():
    stepforge, base, *rest = sys.argv[1:]
    texts = [*every_code_point(), *fuzzed(int(rest[0]) if rest else 5000)]
    prefix = rest[1] if len(rest) > 1 else ""
    with tempfile.TemporaryDirectory() as folder:
        paths = [path for path in write_pipelines(base, folder) if path.rsplit("/", 1)[-1].startswith(prefix)]
        differences = sum(compare(stepforge, path, texts) for path in paths)
    print("%d tokenizers, %d texts each, %d differences" % (len(paths), len(texts), differences))
    sys.exit(1 if differences else 0)


main()
