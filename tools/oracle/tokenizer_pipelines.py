# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that differ in one component each, made from a byte-level BPE tokenizer; imported by the scripts beside it."""
import copy
import json

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BEHAVIORS = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
REGEX = {"Regex": r"[\p{L}\p{M}]+|\p{N}|\s+"}
METASPACE = {"type": "Metaspace", "replacement": "\u2581"}


def normalizers():
    named = {name: {"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")}
    for left, right in ((True, False), (False, True), (True, True)):
        named["Strip%d%d" % (left, right)] = {"type": "Strip", "strip_left": left, "strip_right": right}
    named["ReplaceString"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    named["ReplaceDots"] = {"type": "Replace", "pattern": {"String": "a."}, "content": ""}
    named["ReplaceRegex"] = {"type": "Replace", "pattern": {"Regex": r"\s+|\p{N}"}, "content": " #"}
    named["Prepend"] = {"type": "Prepend", "prepend": "\u2581"}
    steps = [named["NFKD"], named["StripAccents"], named["Lowercase"], named["Strip11"]]
    named["NormalizerSequence"] = {"type": "Sequence", "normalizers": steps}
    return named


def pre_tokenizers():
    named = {}
    for pattern_name, pattern in (("Regex", REGEX), ("String", {"String": " "}), ("Dots", {"String": "a."})):
        for behavior in BEHAVIORS:
            for invert in (False, True):
                step = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
                named["Split%s%s%d" % (pattern_name, behavior, invert)] = step
    for behavior in BEHAVIORS:
        named["Punctuation" + behavior] = {"type": "Punctuation", "behavior": behavior}
    for name in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer"):
        named[name] = {"type": name}
    for each in (False, True):
        named["Digits%d" % each] = {"type": "Digits", "individual_digits": each}
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            named["Metaspace_%s%d" % (scheme, split)] = dict(METASPACE, prepend_scheme=scheme, split=split)
    named["CharDelimiterSplit"] = {"type": "CharDelimiterSplit", "delimiter": "|"}
    named["DigitsPunctuation"] = {"type": "Sequence", "pretokenizers": [named["Digits1"], named["PunctuationContiguous"]]}
    return named


def added_tokens(vocabulary):
    """Every combination of flags. The spellings overlap with words and each other; `tokenizers` panics for a
    token inside the white space of another."""
    spellings = ["ab", "<x>", "b|", "É", "<x> ", "the", "é", "1", "ﬁ", "<X>", "a", "th", "T", "e\u0301x", "_", "he"]
    tokens, next_id = [], len(vocabulary)
    for i in range(32):
        content = spellings[i % 16] + "<" * (i // 16)
        flags = {name: bool(i * 7 >> bit & 1) for bit, name in enumerate(("single_word", "lstrip", "rstrip", "normalized", "special"))}
        tokens.append(dict(flags, id=vocabulary.get(content, next_id), content=content))
        next_id += content not in vocabulary
    return tokens


def pipelines(base):
    """(name, definition) for each component; `base` is the definition of a byte-level BPE tokenizer without added tokens."""
    base = dict(copy.deepcopy(base), added_tokens=[], normalizer=None, post_processor=None)
    base["model"] = dict(base["model"], ignore_merges=False)
    for name, normalizer in normalizers().items():
        yield name, dict(base, normalizer=normalizer)
    for name, step in pre_tokenizers().items():
        yield name, dict(base, pre_tokenizer={"type": "Sequence", "pretokenizers": [step, BYTE_LEVEL]})
    for regex in (False, True):
        yield "ByteLevelPrefix%d" % regex, dict(base, pre_tokenizer=dict(BYTE_LEVEL, add_prefix_space=True, use_regex=regex))
    yield "AddedTokens", dict(base, added_tokens=added_tokens(base["model"]["vocab"]))
    for name in ("Lowercase", "NFKC", "NFD"):
        yield "AddedTokens" + name, dict(base, added_tokens=added_tokens(base["model"]["vocab"]), normalizer={"type": name})


def write_pipelines(base_path, folder):
    with open(base_path, encoding="utf-8") as file:
        base = json.load(file)
    for name, definition in pipelines(base):
        path = "%s/%s.json" % (folder, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(definition, file)
        yield path
