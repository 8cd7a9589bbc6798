#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes ids and decoded text of Hugging Face `tokenizers` for whole tokenizers (tokenizer_kinds.py).

    pip install tokenizers
    tools/oracle/make_kind_golden.py tests/golden/text/kinds.json
"""
import json
import sys

import tokenizers
from fuzzed_texts import fuzzed
from tokenizer_kinds import kinds

TEXTS = ["", " ", "The quick brown fox doesn't mind.", "\u6f22\u5b57 \ufb01 caf\u00e9 e\u0301a\u0308\u00ad \u00bd\t<s>New Token x", "abab <unk></s> [SEP] ThTh\u2581\u2581e"]


def attempt(function):
    """None where Hugging Face panics."""
    try:
        return function()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def main():
    models, found = {}, []
    for number, (name, definition) in enumerate(kinds(0)):
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
        model = name.split("_")[1]
        models[model] = definition["model"]
        cases = []
        for text in TEXTS + list(fuzzed(4, number)):
            ids = attempt(lambda: tokenizer.encode(text, add_special_tokens=False).ids)
            if ids is None:
                continue
            special = tokenizer.encode(text).ids
            cases.append([text, ids, special, attempt(lambda: tokenizer.decode(special, False)), attempt(lambda: tokenizer.decode(special, True))])
        found.append(dict({key: definition[key] for key in definition if key != "model"}, name=name, model=model, cases=cases))
    with open(sys.argv[1], "w", encoding="ascii") as file:
        lines = lambda rows: ",\n".join(rows)
        file.write('{"made_by": "tokenizers %s",\n"models": {\n' % tokenizers.__version__)
        file.write(lines(json.dumps(name) + ": " + json.dumps(model, separators=(",", ":")) for name, model in models.items()))
        file.write('},\n"tokenizers": [\n' + lines(json.dumps(kind, separators=(",", ":")) for kind in found) + "\n]}\n")


main()
