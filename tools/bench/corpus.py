#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the text of `make bench-data` as JSON Lines, and the tokenizers that split it.

    corpus.py FOLDER [MEGABYTES]

Six tenths are English prose, the docstrings of the Python packages of the benchmark's environment; three tenths are their code;
one tenth is text in other scripts, random words of them. Tokenizers of 32,000 tokens with the patterns of GPT-2, Llama 3 and Qwen
are trained by Hugging Face on a part of it.
"""
import ast
import json
import random
import sys
import sysconfig
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))
from tokenizer_oracle import LLAMA3, QWEN, SCRIPTS  # noqa: E402

PATTERNS = {"gpt2": None, "llama3": LLAMA3, "qwen": QWEN}
NORMALIZERS = {"qwen": normalizers.NFC}
MOST_BYTES = 20_000  # of a document


def python_files():
    files = sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py"))
    random.Random(1).shuffle(files)
    for file in files:
        try:
            yield file.read_text()
        except UnicodeDecodeError:
            continue


def docstrings(code):
    try:
        nodes = ast.walk(ast.parse(code))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text and len(text) > 200:
                yield text


def texts_in_scripts():
    rng = random.Random(2)
    words = [word for text in SCRIPTS for word in text.split() if len(word) > 1]
    while True:
        yield " ".join("".join(rng.choice(words) for _ in range(rng.randrange(1, 3))) for _ in range(400))


def write_corpus(path, total):
    wanted = {"prose": total * 6 // 10, "code": total * 3 // 10}
    size = dict.fromkeys(wanted, 0)
    documents = []

    def add(kind, text):
        if size[kind] < wanted[kind]:
            documents.append(text[:MOST_BYTES])
            size[kind] += len(documents[-1].encode())

    for code in python_files():
        add("code", code)
        for text in docstrings(code):
            add("prose", text)
        if all(size[kind] >= wanted[kind] for kind in wanted):
            break
    others = 0
    for text in texts_in_scripts():
        documents.append(text)
        others += len(text.encode())
        if others >= total // 10:
            break
    random.Random(3).shuffle(documents)
    with open(path, "w") as file:
        for text in documents:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return documents


def train(documents, pattern):
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=32000, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def main():
    folder, megabytes = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    folder.mkdir(parents=True, exist_ok=True)
    documents = write_corpus(folder / "corpus.jsonl", megabytes * 1_000_000)
    for name, pattern in PATTERNS.items():
        (folder / name).mkdir(exist_ok=True)
        tokenizer = train(documents[: len(documents) // 3], pattern)
        if name in NORMALIZERS:
            tokenizer.normalizer = NORMALIZERS[name]()
        tokenizer.save(str(folder / name / "tokenizer.json"))


if __name__ == "__main__":
    main()
