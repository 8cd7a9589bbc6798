#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records tests/golden/text/model_tokens.json: folders whose files list added tokens in different places, and what
`transformers` makes of them.

    pip install transformers tokenizers
    tools/oracle/make_model_tokens_golden.py > tests/golden/text/model_tokens.json

Each case has the added tokens and the normalizer of its tokenizer.json, a byte-level BPE without merges whose 256 is
"<|endoftext|>", and the files beside it; then the ids of the texts, eos, bos, and the ids of special tokens.
"""
import json
import os
import tempfile

import transformers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

TEXTS = ["x <A> u", "x<a>y", " <B> <b> <A>", "xABC ABC ABCx", "<E> <S> <P> <F><img> q", "abc b", "X <|endoftext|> Y"]
LOWERCASE = {"type": "Lowercase"}


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


END = token("<|endoftext|>")


def decoder(*tokens):
    return {"256": END, **{str(257 + i): t for i, t in enumerate(tokens)}}


def listed(name, *tokens, inner=(), normalizer=None, **config):
    return dict(name=name, inner=list(inner), normalizer=normalizer,
                files={"tokenizer_config.json": {**config, "added_tokens_decoder": decoder(*tokens)}})


def beside(name, inner=(), normalizer=None, **files):
    return dict(name=name, inner=list(inner), normalizer=normalizer, files={k + ".json": v for k, v in files.items()})


def role(content, **flags):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, **flags}


CASES = [
    listed("decoder adds tokens", token("<A>"), token("<B>"), eos_token="<|endoftext|>"),
    beside("decoder out of order", tokenizer_config={"eos_token": "<B>", "added_tokens_decoder": {"258": token("<B>"), "256": END, "257": token("<A>")}}),
    listed("rstrip of the decoder wins", token("<A>", rstrip=True), inner=[token("<A>")], eos_token="<A>"),
    listed("lstrip of the decoder wins", token("<A>", lstrip=True), inner=[token("<A>", rstrip=True)]),
    listed("flags of the decoder win over a plain list", token("<A>", lstrip=True, rstrip=True), inner=[token("<A>")], additional_special_tokens=["<A>"]),
    listed("decoder without a token of tokenizer.json", inner=[token("<A>", lstrip=True)], additional_special_tokens=["<A>"]),
    listed("decoder without the role of tokenizer.json", inner=[token("<A>", lstrip=True)], eos_token="<A>"),
    listed("normalized tokens", token("<A>", normalized=True, special=False), token("<b>", normalized=True, special=False), normalizer=LOWERCASE),
    listed("no longer normalized", token("<A>"), inner=[token("<A>", normalized=True)], normalizer=LOWERCASE),
    listed("flags by default", {"content": "<A>"}, {"content": "<B>", "special": True}, normalizer=LOWERCASE),
    listed("single word", token("ABC", single_word=True)),
    listed("no longer special", token("<A>", special=False), inner=[token("<A>")]),
    listed("a role is special", token("<A>", special=False), inner=[token("<A>")], eos_token="<A>"),
    beside("decoder names a piece", tokenizer_config={"added_tokens_decoder": {"98": token("b"), "256": END}}),
    beside("decoder names another piece", tokenizer_config={"added_tokens_decoder": {"98": token("b"), "256": END}, "eos_token": "b"}),
    beside("a role names a piece", tokenizer_config={"eos_token": "b"}),
    beside("roles add tokens", tokenizer_config={"pad_token": "<P>", "eos_token": role("<E>", rstrip=True), "bos_token": role("<S>"), "image_token": "<img>"}),
    beside("empty roles", tokenizer_config={"eos_token": "", "pad_token": None}),
    beside("list of extra tokens", tokenizer_config={"extra_special_tokens": ["<A>", "<B>"]}),
    beside("list of additional tokens", tokenizer_config={"additional_special_tokens": ["<A>", "<B>"]}),
    beside("both lists", tokenizer_config={"additional_special_tokens": ["<A>"], "extra_special_tokens": ["<B>"]}),
    beside("named extra tokens", tokenizer_config={"extra_special_tokens": {"image_token": "<A>", "x_token": "<B>"}}),
    beside("flags in tokenizer.json, role by name", inner=[token("<A>", lstrip=True)], tokenizer_config={"eos_token": "<A>"}),
    beside("a role makes a token special", inner=[token("<A>", special=False, normalized=True, lstrip=True)], normalizer=LOWERCASE,
           tokenizer_config={"eos_token": "<A>"}),
    beside("only special_tokens_map.json", special_tokens_map={"eos_token": "<E>", "additional_special_tokens": ["<A>"],
           "pad_token": {"content": "<P>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}}),
    beside("special_tokens_map.json wins", tokenizer_config={"eos_token": "<|endoftext|>"}, special_tokens_map={"eos_token": "<F>"}),
    beside("special_tokens_map.json beside a decoder", tokenizer_config={"eos_token": "<|endoftext|>", "added_tokens_decoder": decoder()},
           special_tokens_map={"eos_token": "<F>", "additional_special_tokens": ["<A>"]}),
    beside("lists in both files", tokenizer_config={"additional_special_tokens": ["<B>"]}, special_tokens_map={"additional_special_tokens": ["<A>"]}),
    beside("new lists in both files", tokenizer_config={"extra_special_tokens": ["<B>"]}, special_tokens_map={"extra_special_tokens": ["<A>"]}),
    beside("added_tokens.json", tokenizer_config={}, added_tokens={"<A>": 257, "<B>": 258}),
    beside("added_tokens.json out of order", tokenizer_config={}, added_tokens={"<B>": 258, "<A>": 257}),
    beside("added_tokens.json with roles", tokenizer_config={"additional_special_tokens": ["<B>"], "eos_token": "<A>"}, added_tokens={"<A>": 257, "<B>": 258, "<P>": 259},
           normalizer=LOWERCASE),
    beside("added_tokens.json repeats tokenizer.json", inner=[token("<A>", lstrip=True)], tokenizer_config={}, added_tokens={"<A>": 257}),
    beside("added_tokens.json beside a decoder", tokenizer_config={"added_tokens_decoder": decoder(token("<B>"))}, added_tokens={"<A>": 258}),
]


def definition(case):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (ord(c) >= 256, ord(c)))
    keep = [b for b in range(256) if chr(b) in alphabet]
    spelling = {b: chr(b) for b in keep}
    for i, b in enumerate(b for b in range(256) if b not in spelling):
        spelling[b] = chr(256 + i)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": 256 + i, **t} for i, t in enumerate([END] + case["inner"])]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, "vocab": {spelling[b]: b for b in range(256)}, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": case["normalizer"], "pre_tokenizer": level,
            "post_processor": None, "decoder": level, "model": model}


def record(case):
    with tempfile.TemporaryDirectory() as folder:
        files = dict(case["files"])
        if "tokenizer_config.json" in files:
            files["tokenizer_config.json"] = {"tokenizer_class": "PreTrainedTokenizerFast", **files["tokenizer_config.json"]}
        for name, value in {**files, "tokenizer.json": definition(case)}.items():
            with open(os.path.join(folder, name), "w") as file:
                json.dump(value, file)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        special = sorted(i for i, t in tokenizer.added_tokens_decoder.items() if t.special)
        return {**case, "files": files, "ids": [tokenizer.encode(text) for text in TEXTS], "eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id,
                "special": special, "size": len(tokenizer)}


print('{"made_by": "transformers %s",' % transformers.__version__)
print('"texts": %s,' % json.dumps(TEXTS))
print('"cases": [\n' + ",\n".join(json.dumps(record(case)) for case in CASES) + "\n]}")
