# SPDX-License-Identifier: Apache-2.0
"""Whole tokenizers: models that Hugging Face trains on a few sentences, with every normalizer, pre-tokenizer, decoder and post-processor;
imported by the scripts beside it."""
import base64
import functools
import json
import random
import struct
import unicodedata

import tokenizer_pipelines as pipelines
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog; the dog doesn't mind, and it isn't the first time.",
    "She said: \"the weather is better there than anywhere else\" - or did she? 12345 67.89 2024",
    "Un caf\u00e9 cr\u00e8me et une th\u00e9i\u00e8re, s'il vous pla\u00eet. Stra\u00dfe, M\u00fcnchen, \u00c4pfel.",
    "\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u6587\u306e\u4f8b\u3067\u3059\u3002 \u4f60\u597d\uff0c\u4e16\u754c\uff01 \u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "abab abc abcabc aaa aaaa bbb the then there these other another mother brother",
]
UNKNOWN = "<unk>"
SPECIALS = [UNKNOWN, "<s>", "</s>", "[CLS]", "[SEP]", "<pad>"]
BYTES = ["<0x%02X>" % byte for byte in range(256)]


def trained(model, trainer, marked=False):
    """The model's JSON. With `marked`, words begin with the mark of SentencePiece."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if marked else pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return json.loads(tokenizer.to_str())["model"]


def with_bytes(model, count=256):
    """With tokens for the first `count` bytes."""
    if isinstance(model["vocab"], dict):
        vocab = dict(model["vocab"])
        vocab.update({token: len(model["vocab"]) + i for i, token in enumerate(BYTES[:count])})
    else:
        vocab = model["vocab"] + [[token, 0.0] for token in BYTES[:count]]
    return dict(model, vocab=vocab, byte_fallback=True)


@functools.lru_cache(None)
def model_definitions():
    options = dict(special_tokens=SPECIALS, show_progress=False)
    bpe = lambda marked=False, **more: trained(models.BPE(unk_token=UNKNOWN, **more), trainers.BpeTrainer(vocab_size=300, **options, **more), marked)
    plain, marked = bpe(), bpe(True)
    piece = trained(models.WordPiece(unk_token=UNKNOWN), trainers.WordPieceTrainer(vocab_size=300, **options))
    unigram = trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=220, unk_token=UNKNOWN, **options), True)
    level = trained(models.WordLevel(unk_token=UNKNOWN), trainers.WordLevelTrainer(vocab_size=60, **options))
    ties = dict(unigram, vocab=[[token, float(round(score))] for token, score in unigram["vocab"]])
    return {
        "Bpe": plain,
        "BpeMarked": marked,
        "BpeFused": dict(plain, fuse_unk=True),
        "BpeBytes": with_bytes(marked),
        "BpeBytesFused": dict(with_bytes(marked), fuse_unk=True, ignore_merges=True),
        "BpeSomeBytes": dict(with_bytes(marked, 0xE3), fuse_unk=True),
        "BpeNoUnknown": dict(plain, unk_token=None),
        "BpeIgnoreMerges": dict(plain, ignore_merges=True),
        "BpeOldMerges": dict(plain, merges=["#version: 0.2"] + [" ".join(pair) for pair in plain["merges"]]),
        "BpePrefix": bpe(continuing_subword_prefix="##"),
        "BpeSuffix": bpe(end_of_word_suffix="</w>"),
        "WordPiece": piece,
        "WordPieceShort": dict(piece, max_input_chars_per_word=5),
        "WordPieceNoPrefix": dict(piece, continuing_subword_prefix=""),
        "WordLevel": level,
        "Unigram": unigram,
        "UnigramBytes": with_bytes(unigram),
        "UnigramSomeBytes": with_bytes(unigram, 0xE3),
        "UnigramTies": ties,
        "UnigramTiesBytes": with_bytes(ties),
    }


def charsmap(entries):
    """SentencePiece's compiled form of a map from texts to texts: a double-array trie, then the texts."""
    texts, offsets = b"", {}
    for value in sorted(set(entries.values())):
        offsets[value] = len(texts)
        texts += value.encode() + b"\0"
    root = {}
    for key, value in entries.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = value
    units, used, free = {0: 0}, {0}, 1
    pending = [(0, root)]
    while pending:
        at, node = pending.pop()
        places = [byte or 0 for byte in node]  # a leaf is at the place of the byte 0
        while free in used:
            free += 1
        base = free
        while any(base ^ place in used for place in places) or (at ^ base) >= 1 << 21:
            base += 1
        used.update(base ^ place for place in places)
        units[at] = units.get(at, 0) | (at ^ base) << 10 | (0x100 if None in node else 0)
        for byte, child in node.items():
            if byte is None:
                units[base] = 1 << 31 | offsets[child]
            else:
                units[base ^ byte] = byte
                pending.append((base ^ byte, child))
    size = max(units) // 256 * 256 + 256
    array = struct.pack("<%dI" % size, *(units.get(i, 0) for i in range(size)))
    return base64.b64encode(struct.pack("<I", len(array)) + array + texts).decode()


@functools.lru_cache(None)
def precompiled(large):
    """Compatibility characters, and letters with a mark; also texts that vanish or grow."""
    entries = {"\u00ad": "", "\u200b": " ", "\t": " ", "\ufb01": "fi", "\u00bd": "1/2", "x": "xyz", "e\u0301": "\u00e9", "a\u0308": "\u00e4", "\u2581": "_"}
    if large:
        for c in [*range(0xA0, 0x3100), *range(0xF900, 0xFFEF)]:
            form = unicodedata.normalize("NFKC", chr(c))
            if form != chr(c) and "\0" not in form:
                entries[chr(c)] = form
        for letter in "abcdeghinorstuyzAEIOU":
            for mark in range(0x300, 0x330):
                form = unicodedata.normalize("NFC", letter + chr(mark))
                if len(form) == 1:
                    entries[letter + chr(mark)] = form
    return {"type": "Precompiled", "precompiled_charsmap": charsmap(entries)}


def normalizers(large=False):
    named = dict(pipelines.normalizers(), none=None, Nmt={"type": "Nmt"}, ByteLevel={"type": "ByteLevel"}, Precompiled=precompiled(large))
    for i in range(24):
        named["Bert%d" % i] = {
            "type": "BertNormalizer", "clean_text": bool(i & 1), "handle_chinese_chars": bool(i & 2), "lowercase": bool(i & 4),
            "strip_accents": (None, False, True)[i // 8],
        }
    marked = [named["Prepend"], named["ReplaceString"]]
    named["Llama"] = {"type": "Sequence", "normalizers": marked}
    named["T5"] = {"type": "Sequence", "normalizers": [named["Precompiled"], {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}]}
    named["Shrinking"] = {"type": "Sequence", "normalizers": [named["NFKD"], named["Strip11"], named["StripAccents"], named["Nmt"]]}
    return named


def pre_tokenizers_named():
    named = dict(pipelines.pre_tokenizers(), none=None, UnicodeScripts={"type": "UnicodeScripts"})
    for length in (1, 5):
        named["FixedLength%d" % length] = {"type": "FixedLength", "length": length}
    for prefix in (False, True):
        for regex in (False, True):
            named["ByteLevel%d%d" % (prefix, regex)] = dict(pipelines.BYTE_LEVEL, add_prefix_space=prefix, use_regex=regex)
    first = dict(pipelines.METASPACE, prepend_scheme="first", split=False)
    for before in ("PunctuationIsolated", "WhitespaceSplit", "FixedLength1", "SplitDotsRemoved0", "UnicodeScripts", "ByteLevel10", "Metaspace_always0"):
        named[before + "First"] = {"type": "Sequence", "pretokenizers": [named[before], first]}
    return named


def decoders():
    step = lambda kind, **more: dict(more, type=kind)
    replace = step("Replace", pattern={"String": "\u2581"}, content=" ")
    named = {
        "none": None, "ByteLevel": pipelines.BYTE_LEVEL, "ByteFallback": step("ByteFallback"), "Fuse": step("Fuse"), "Replace": replace,
        "ReplaceRegex": step("Replace", pattern={"Regex": "[aeo]+"}, content="<>"), "Bpe": step("BPEDecoder", suffix="</w>"),
        "BpeE": step("BPEDecoder", suffix="e"), "Strip": step("Strip", content="\u2581", start=1, stop=0), "StripEnd": step("Strip", content="e", start=0, stop=1),
    }
    for scheme in ("always", "first", "never"):
        named["Metaspace_" + scheme] = dict(pipelines.METASPACE, prepend_scheme=scheme, split=True)
    for cleanup in (False, True):
        named["WordPiece%d" % cleanup] = step("WordPiece", prefix="##", cleanup=cleanup)
        named["CTC%d" % cleanup] = step("CTC", pad_token="<pad>", word_delimiter_token="|", cleanup=cleanup)
    sequence = lambda *steps: step("Sequence", decoders=list(steps))
    named["Llama"] = sequence(replace, named["ByteFallback"], named["Fuse"], step("Strip", content=" ", start=1, stop=0))
    named["FuseStrip"] = sequence(named["Fuse"], step("Strip", content="\u2581", start=2, stop=3), replace)
    named["BytesFirst"] = sequence(named["ByteLevel"], step("Strip", content="T", start=1, stop=0))
    named["BytesLast"] = sequence(replace, named["ByteLevel"])
    named["Chain"] = sequence(named["WordPiece1"], named["ByteFallback"], named["BpeE"])
    return named


def post_processors(ids):
    piece = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("<s>", "</s>")}
    special["two"] = {"id": "two", "ids": [ids["[SEP]"], ids["[CLS]"]], "tokens": ["[SEP]", "[CLS]"]}
    template = lambda *single: {"type": "TemplateProcessing", "single": list(single), "pair": [text("A", 0), text("B", 1)], "special_tokens": special}
    ends = {"sep": ["[SEP]", ids["[SEP]"]], "cls": ["[CLS]", ids["[CLS]"]]}
    named = {
        "none": None, "ByteLevel": pipelines.BYTE_LEVEL, "Bert": dict(ends, type="BertProcessing"),
        "Roberta": dict(ends, type="RobertaProcessing", trim_offsets=True, add_prefix_space=False),
        "Begin": template(piece("<s>"), text("A", 0)), "Both": template(piece("<s>"), piece("two"), text("A", 0), piece("</s>"), piece("</s>")),
        "Text": template(text("A", 0)),
    }
    named["BytesBegin"] = {"type": "Sequence", "processors": [named["ByteLevel"], named["Begin"]]}
    return named


def added_tokens(vocabulary, size):
    """Special tokens, and others that only this tokenizer has."""
    tokens = [{"id": vocabulary[s], "content": s, "single_word": False, "lstrip": i == 4, "rstrip": i == 3, "normalized": False, "special": True}
              for i, s in enumerate(SPECIALS)]
    for i, content in enumerate(["<x>", "New Token", "\u00c9t\u00e9", "\u0120q"]):
        tokens.append({"id": size + i, "content": content, "single_word": i == 1, "lstrip": False, "rstrip": False, "normalized": i > 0, "special": False})
    return tokens


def definition(model, normalizer, pre_tokenizer, decoder, post_processor, with_added=True):
    vocab = model["vocab"]
    ids = vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens(ids, len(vocab)) if with_added else [],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processors(ids)[post_processor], "decoder": decoder, "model": model,
    }


def kinds(combinations, large=False):
    """(name, definition): each component at least once, then random combinations."""
    rng = random.Random(3)
    parts = [model_definitions(), normalizers(large), pre_tokenizers_named(), decoders()]
    names = [list(part) for part in parts]
    posts = ["none", "ByteLevel", "Bert", "Roberta", "Begin", "Both", "Text", "BytesBegin"]
    rounds = max(map(len, names))
    for i in range(rounds + combinations):
        # A component that has had its turn is drawn at random.
        chosen = [n[i] if i < len(n) else rng.choice(n) for n in names]
        post = posts[i % len(posts)]
        values = [part[name] for part, name in zip(parts, chosen)]
        yield "%d_%s_%s" % (i, "_".join(chosen), post), definition(*values, post, i % 4 != 3)
