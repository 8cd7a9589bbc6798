#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/text: small tokenizers trained by Hugging Face `tokenizers`, and its token ids for chosen texts.

    pip install tokenizers
    tools/oracle/make_tokenizer_golden.py tests/golden/text
"""
import json
import os
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LEARN_FROM = [
    "The old mill stands by the river, and the river turns the wheel. Nobody has ground corn there since the winter of 1847.",
    "She said that she'd come if they'd wait; they're waiting still, aren't they? It's late, we've time, I'll go.",
    "for (int i = 0; i < 100; ++i) {\n    total += values[i] * weights[i];\n}\n\treturn total;\n",
    "El río corre hacia el mar. Über den Wolken. Der Straßenbauer grüßt. Привет, мир! 世界 世界 世界 你好 你好 0123456789 999 1000",
    # Learned as pieces, so that splitting them differently changes the ids: letters of Unicode 15, U+180E after a space.
    "x\U00031350\U000323af x\U00031350\U000323af x\U00031350\U000323af \u180e\u180e! \u180e\u180e! \u180e\u180e!",
] * 4
TEXTS = [
    "", " ", "a", "The river turns the wheel.", "  The\n\n  wheel\t\tturns \n", "she'd SHE'D it'ſ we'RE 'tis", "1 12 123 1234 12345 ٣٤٥ ½Ⅷ",
    "x=1;y[2]+=z->w; // ----\r\n\r\n", "<|endoftext|>", "a<|endoftext|>b <|endoftext|><|endoftext|>\n", "<|endoftext", "<|start|>user<|start|>",
    "the note <note> of <note>s", "Crème brûlée, naïve façade", "e\u0301o\u0302\u0323 \u0301", "世界你好。漢字かな交じり文", "😀👩‍👩‍👧‍👦🇩🇪 🏳️‍🌈",
    # Letters and digits added by Unicode 15 and 16: CJK Extension H and I, Kawi, Garay, Kaktovik.
    "a\U00031350\U000323afb 1\U0002ebf0 \U00011f04\U00011f50\U00011f51\U00011f52\U00011f53 \U00010d50\U00010d70 \U0001d2c0\U0001d2c1!",
    "a\u180eb \u180e \u180e\n", "x\U00031350\U000323af \u180e\u180e!", "x\U00031350 \u180e!", "a\u00a0b\u3000c\u2028d\u0085e \u200b f\ufeff", "\x00\x01\x7f\u0080", "\t \t  x \n \n  y   ", " " * 40, "ab" * 60,
    "wheel" * 30, "-" * 100 + "\n", "the the the the", "\U0010ffff\ufffd\ufffe",
]


def train(pattern, ignore_merges, vocab_size):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is None:
        tokenizer.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LEARN_FROM, trainer)
    return tokenizer


def without_last_merges(tokenizer, count):
    """Some whole words stay in the vocabulary although no merge produces them: for them ignore_merges matters."""
    document = json.loads(tokenizer.to_str())
    del document["model"]["merges"][-count:]
    return Tokenizer.from_str(json.dumps(document))


def llama3_like():
    tokenizer = without_last_merges(train(LLAMA3, True, 480), 40)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|start|>"])
    # Plain added tokens are matched after the special ones.
    tokenizer.add_tokens([AddedToken("<note>", normalized=True), AddedToken("<|end", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", tokenizer.token_to_id("<|start|>"))]
    )
    return tokenizer


def gpt2_like():
    tokenizer = train(None, False, 420)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def write(folder, name, tokenizer):
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    tokenizer.save(os.path.join(folder, name, "tokenizer.json"))
    cases = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in TEXTS]
    golden = {"made_by": "tokenizers " + tokenizers.__version__, "vocab_size": tokenizer.get_vocab_size(), "cases": cases}
    with open(os.path.join(folder, name, "golden.json"), "w", encoding="ascii") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")


def main():
    write(sys.argv[1], "llama3_like", llama3_like())
    write(sys.argv[1], "gpt2_like", gpt2_like())


if __name__ == "__main__":
    main()
