#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/text/trainer.json: what Hugging Face's BpeTrainer learns from small texts (see trainer_oracle.py).

    pip install tokenizers
    tools/oracle/make_trainer_golden.py tests/golden/text/trainer.json
"""
import json
import random
import sys

import tokenizers
from make_tokenizer_golden import LEARN_FROM
from trainer_oracle import PATTERNS, SPECIAL, hugging_face, letters, merges_of


def main():
    rng = random.Random(5)
    cases = []
    for number in range(24):
        # Two thirds are runs of few letters, where pairs are equally frequent and several make the same token.
        text = "\n".join(LEARN_FROM) if number % 3 == 0 else letters(rng)[:2000]
        special = SPECIAL[number % 3]
        name = list(PATTERNS)[number % len(PATTERNS)]
        digits, extra, frequency = ["pattern", "one", "three"][number // 3 % 3], rng.choice([12, 40]), rng.choice([1, 2, 3])
        size = 256 + max(1, len(special)) + extra
        learned = hugging_face(text, PATTERNS[name], digits, special, size - (not special), frequency)
        pieces = [token for token, _ in sorted(learned["model"]["vocab"].items(), key=lambda item: item[1])]
        cases.append({
            "text": text, "pattern": name, "digits": digits, "special_tokens": special, "vocab_size": size, "min_frequency": frequency,
            "merges": [" ".join(pair) for pair in merges_of(learned)], "learned": pieces[256 + len(special) :],
        })
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"tokenizers": tokenizers.__version__, "cases": cases}, file, ensure_ascii=False, indent=1)
        file.write("\n")


main()
