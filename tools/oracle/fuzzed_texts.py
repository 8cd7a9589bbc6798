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
    "\U0001F44D\U0001F3FD", "1\ufe0f\u20e3", "\u2764\ufe0f\u200d\U0001F525", "\U0001F3F4\U000E0067\U000E0062\U000E007F", "\U0001FAE8", "\U0001FAE9",
]
# Characters that Unicode 14 to 17 added, and some that no version has.
NEW = [
    range(0x870, 0x88F), range(0x1C89, 0x1C8B), range(0xA7CB, 0xA7DD), range(0x105C0, 0x105F4), range(0x10D40, 0x10D90), range(0x11B00, 0x11B0A), range(0x11BC0, 0x11BFA),
    range(0x11F00, 0x11F5A), range(0x13430, 0x13456), range(0x13460, 0x143FB), range(0x16D40, 0x16D7A), range(0x1CC00, 0x1CCFA), range(0x1DF00, 0x1DF2B), range(0x1E030, 0x1E090),
    range(0x1E4D0, 0x1E4FA), range(0x1E5D0, 0x1E600), range(0x1E6C0, 0x1E700), range(0x2EBF0, 0x2EE5E), range(0x31350, 0x323B0), range(0x323B0, 0x3347A), range(0x40000, 0x40010),
]
CONTROLS = [*range(1, 0x20), *range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC), *range(0xE0020, 0xE0080)]


def piece(rng, special):
    kind = rng.random()
    if kind < 0.58:
        return rng.choice(COMMON)
    if kind < 0.68:
        return chr(rng.choice(MARKS))
    if kind < 0.76:
        return rng.choice(special)
    if kind < 0.77:
        return rng.choice(COMMON) * rng.randrange(2, 80)
    if kind < 0.771:
        return rng.choice([*COMMON, chr(rng.choice(MARKS))]) * rng.randrange(80, 1000)
    if kind < 0.80:
        return chr(rng.choice(CONTROLS))
    if kind < 0.82:
        return chr(rng.choice(rng.choice(NEW)))
    return chr(CODE_POINTS[rng.randrange(rng.choice([0x500, 0x3000, 0x20000, len(CODE_POINTS)]))])


def fuzzed(count, seed=12, special=()):
    """Strings of up to 23 pieces; `special` are further pieces, such as the special tokens of a tokenizer."""
    rng = random.Random(seed)
    special = SPECIAL + list(special)
    # Drawing from pieces made once is many times faster than making each.
    pieces = [piece(rng, special) for _ in range(2 * count + 1000)]
    for _ in range(count):
        yield "".join(rng.choices(pieces, k=rng.randrange(1, 24)))
