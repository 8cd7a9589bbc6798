# SPDX-License-Identifier: Apache-2.0
"""Strings over all planes of Unicode that are hard for tokenizers; imported by the scripts beside it."""
import random

CODE_POINTS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
COMMON = list("abcdexhTABE .,;!?'\t\n |<>_0123456789") + ["ab", "<x>", "the", "There ", " is", "n't", "\u00c9", "e\u0301", "\ufb01", "a.", "\u2581", "  ", "\u1100\u1161\u11a8", "\u0130", "caf\u00e9", "\u6f22\u5b57", "\u304b"]
MARKS = [*range(0x300, 0x370), *range(0x591, 0x5C8), *range(0x64B, 0x660), *range(0x1DC0, 0x1E00), 0x3099, 0x309A]
# Emoji sequences, joiners, controls, an unassigned character, special tokens and byte tokens spelled out.
SPECIAL = [
    "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\U0001F3F3\ufe0f\u200d\U0001F308", "\U0001F1E9\U0001F1EA", "\u00a9\u200d", "\0", "\x01", "\x7f", "\x85", "\x9f", "\u00ad",
    "\u200b", "\u200e", "\ufeff", "\ufffd", "\ufffe", "\u0378", "\U000e0001", "\U0010ffff", "\U00010d50", "<unk>", "<s>", "</s>", "[CLS]", " [SEP] ", "<pad>", "New Token", "\u00c9t\u00e9", "\u0120q", "<0x41>", "##a", "</w>",
]


def piece(rng):
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(COMMON)
    if kind < 0.7:
        return chr(rng.choice(MARKS))
    if kind < 0.78:
        return rng.choice(SPECIAL)
    if kind < 0.79:
        return rng.choice(COMMON) * rng.randrange(2, 80)
    return chr(rng.choice(CODE_POINTS[: rng.choice([0x500, 0x3000, 0x20000, len(CODE_POINTS)])]))


def fuzzed(count, seed=12):
    rng = random.Random(seed)
    for _ in range(count):
        yield "".join(piece(rng) for _ in range(rng.randrange(1, 24)))
