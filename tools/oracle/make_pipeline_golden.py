#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the token ids of Hugging Face `tokenizers` for the tokenizers of tokenizer_pipelines.py.

    pip install tokenizers
    tools/oracle/make_pipeline_golden.py tests/golden/text/llama3_like/tokenizer.json tests/golden/text/pipelines.json
"""
import json
import sys

import tokenizers
from tokenizer_pipelines import pipelines

TEXTS = [
    "", " ", "The wheel ab, <x>the|THE_12  345", "\t É e\u0301x \ufb01n\u00e4l \u2581a.b.a--c!! ", "Straße İ \u03a3\u03c2 \u212b \uff21\u32ff",
    "a\u0301\u0323 \u1df6\u0301 \u1100\u1161\u11a8 \uac01", "\u3000x\u00a0y\u200b\u180e 1\u0662\u216b\u00bd", "\U00010d50\U00011938\U0001e030 \U0001f600\u00bf?",
    "b|<x> <x>  the1<X>ab<a<", "abab _ab_ (ab) ab", "¿qu\u00e9? $5+\u20ac6 \u2460\u24d0",
]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        base = json.load(file)
    found = []
    for name, definition in pipelines(base):
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        parts = {key: definition[key] for key in ("added_tokens", "normalizer", "pre_tokenizer")}
        found.append(dict(parts, name=name, ids=ids))
    head = {"made_by": "tokenizers " + tokenizers.__version__, "texts": TEXTS}
    with open(sys.argv[2], "w", encoding="ascii") as file:
        lines = ",\n".join(json.dumps(pipeline) for pipeline in found)
        file.write(json.dumps(head)[:-1] + ', "pipelines": [\n' + lines + "\n]}\n")


main()
