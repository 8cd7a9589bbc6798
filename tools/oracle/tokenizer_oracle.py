#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the token ids of `stepforge tokenizer` with those of Hugging Face `tokenizers` on 10 MB of mixed text.

    pip install tokenizers
    tools/oracle/tokenizer_oracle.py STEPFORGE ENGLISH_TEXT [TOKENIZER_JSON...]

Tokenizers compared: one that Stepforge trains, a byte tokenizer, some that Hugging Face trains with the patterns of GPT-2, Llama 3,
Qwen and GPT-4o, and those on the command line. Every text is encoded by both and decoded back. Exit code 1 with the first
differences.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

MEGABYTE = 1_000_000
END_OF_TEXT = "<|endoftext|>"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u180e\u2000\u2003\u2007\u200a\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
SCRIPTS = [
    "漢字かな交じり文の例です。", "你好，世界！这是一个测试。", "안녕하세요 세계 ", "Привет, мир! ", "Γειά σου Κόσμε ", "مرحبا بالعالم ",
    "שלום עולם ", "नमस्ते दुनिया ", "สวัสดีชาวโลก ", "Crème brûlée à la façon d'été ", "Ĳsselmeer straße Ǆ ", "Việt Nam ơi ",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 ", "e\u0301a\u0308\u0323o\u0302 ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 ", "Ⅷ ½ ² ٣٤٥ १२३ ", "\U00031350\U000323af \U0002ebf0 ",
    "'s 'S 'ſ 'LL 've 'ſt it'ſ we'Re ", "\x00\x01\x7f\x80\x9f ",
]
CODE = [
    "for (int i = 0; i < {n}; ++i) {{\n\t\tsum += a[i] * 0x{n:x};\n    }}\n", "def f_{n}(x, *, y=None):\n    return x['k{n}'] != y\n\n\n",
    '{{"id": {n}, "v": [1.5e-{n}, null], "s": "\\u00e9\\n"}}\r\n', "#include <vector>\r\n// ---------- {n} ----------\n",
    "SELECT * FROM t{n} WHERE a>={n} AND b<>'x';\n", "https://example.org/?q={n}&r=%20#top ", "<div class=\"c{n}\">&nbsp;</div>\n\n",
]


def assigned_code_points():
    """All code points except surrogates; only samples of unassigned planes."""
    return [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x34000 or 0xE0000 <= c < 0xE0200 or c % 257 == 0)]


def every_code_point():
    """Each code point in contexts that can matter: after and before letters, digits, spaces, punctuation and line breaks."""
    points = assigned_code_points()
    for start in range(0, len(points), 16):
        yield "".join("a%sb %s1%s!%s\n" % ((chr(c),) * 4) for c in points[start : start + 16])


def random_unicode(rng):
    points = assigned_code_points()
    marks = [c for c in points if unicodedata.combining(chr(c))]
    while True:
        length = rng.randrange(1, 200)
        yield "".join(chr(rng.choice(points if rng.random() < 0.7 else marks)) for _ in range(length))


def white_space(rng):
    while True:
        parts = []
        for _ in range(rng.randrange(1, 40)):
            parts.append(rng.choice(WHITE_SPACE) * rng.choice([1, 1, 2, 3, 17, 200]))
            parts.append(rng.choice(["", "", "word", ".", "7", "'s", "(", "é"]))
        yield "".join(parts)


def endless(maker):
    while True:
        yield maker()


def english_parts(text, rng):
    while True:
        start = rng.randrange(len(text))
        yield text[start : start + rng.randrange(1, 4000)]


def take(source, size):
    """Texts of about `size` bytes in total."""
    texts = []
    while size > 0:
        text = next(source, None)
        if text is None:
            break
        texts.append(text)
        size -= len(text.encode())
    return texts


def mixed_texts(english):
    rng = random.Random(20240607)
    number = lambda: rng.randrange(10 ** rng.randrange(1, 12))
    texts = list(every_code_point())
    texts += take(english_parts(english, rng), 3 * MEGABYTE)
    texts += take(endless(lambda: "".join(rng.choice(CODE).format(n=number()) for _ in range(30))), MEGABYTE)
    texts += take(endless(lambda: rng.choice([" ", ",", "", "-"]).join(str(number()) for _ in range(50))), MEGABYTE // 2)
    texts += take(endless(lambda: "".join(rng.choice(SCRIPTS) for _ in range(30))), MEGABYTE)
    texts += take(random_unicode(rng), MEGABYTE)
    texts += take(white_space(rng), MEGABYTE)
    texts += take(endless(lambda: rng.choice("ab-_ =漢") * rng.randrange(1, 5000)), MEGABYTE // 4)
    rng.shuffle(texts)
    joined = [a + rng.choice(["", " ", "\n", END_OF_TEXT, "<|endof"]) + b for a, b in zip(texts[::7], texts[3::7])]
    texts += take(iter(joined), 10 * MEGABYTE - sum(len(t.encode()) for t in texts))
    return texts + ["", " ", "\n", END_OF_TEXT, END_OF_TEXT * 3]


def hugging_face_tokenizer(texts, pattern, ignore_merges=False):
    """A tokenizer trained by Hugging Face. Without a pattern it uses ByteLevel's own, that of GPT-2."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is None:
        tokenizer.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=6000, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False, max_token_length=64
    )
    tokenizer.train_from_iterator(texts[::3], trainer)
    return tokenizer


def byte_tokenizer(folder):
    """A tokenizer of the 256 bytes, in byte order, and <|endoftext|>."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    vocabulary = {chr(b if b in printable else 256 + others.index(b)): b for b in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    path = os.path.join(folder, "bytes.json")
    tokenizer.save(path)
    return path


def run(command, lines):
    done = subprocess.run(command, input="".join(line + "\n" for line in lines).encode(), stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit("%s ended with exit code %d" % (" ".join(command), done.returncode))
    return done.stdout.decode().split("\n")[:-1]


def report(name, kind, text, ours, theirs):
    print("%s: %s differ for %r" % (name, kind, text[:200]))
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    print("  first at %d\n  stepforge %s\n  tokenizers %s" % (at, ours[max(0, at - 3) : at + 8], theirs[max(0, at - 3) : at + 8]))


def compare(stepforge, path, texts):
    """The number of texts that differ."""
    tokenizer = Tokenizer.from_file(path)
    codec = lambda word: [stepforge, "tokenizer", word, "--tokenizer", path, "--jsonl"]
    encoded = run(codec("encode"), [json.dumps(text) for text in texts])
    decoded = run(codec("decode"), encoded)
    assert len(encoded) == len(decoded) == len(texts), "expected one output line per input line"
    theirs = tokenizer.encode_batch(texts, add_special_tokens=False)
    differences = 0
    for text, our_line, their, back_line in zip(texts, encoded, theirs, decoded):
        ours, back = json.loads(our_line), json.loads(back_line)
        if ours != their.ids:
            report(path, "ids", text, ours, their.ids)
        elif back != text:
            report(path, "decoded texts", text, back, text)
        else:
            continue
        differences += 1
        if differences == 5:
            break
    if differences == 0:
        total = sum(len(their.ids) for their in theirs)
        print("%s: %d ids of %d texts equal, decoded back exactly" % (os.path.basename(path), total, len(texts)))
    return differences


def main():
    stepforge, english_path, *named = sys.argv[1:]
    with open(english_path, encoding="utf-8", newline="") as file:
        texts = mixed_texts(file.read())
    print("%d texts, %.1f MB" % (len(texts), sum(len(t.encode()) for t in texts) / MEGABYTE))
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        trained = os.path.join(folder, "trained")
        subprocess.run(
            [stepforge, "tokenizer", "train", english_path, "--vocab-size", "4096", "--output", trained], check=True
        )
        paths = [os.path.join(trained, "tokenizer.json"), byte_tokenizer(folder)]
        variants = {"gpt2": (None, False), "llama3": (LLAMA3, True), "qwen": (QWEN, False), "gpt4o": (GPT4O, False)}
        for name, (pattern, ignore_merges) in variants.items():
            paths.append(os.path.join(folder, name + ".json"))
            hugging_face_tokenizer(texts, pattern, ignore_merges).save(paths[-1])
        for path in paths + named:
            differences += compare(stepforge, path, texts)
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
