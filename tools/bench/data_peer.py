#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peers of `make bench-data`, each in a process of its own. Prints {"seconds": ...}.

    data_peer.py encode TOKENIZER CORPUS               Hugging Face tokenizers on the texts, one thread
    data_peer.py map TOKENIZER CORPUS PROCESSES        datasets.map over the JSON Lines file
    data_peer.py preprocess TOKENIZER CORPUS PROCESSES OUTPUT
                                                       JSON Lines to .bin/.idx, as Megatron-LM's preprocess_data.py does it
"""
import json
import multiprocessing
import os
import struct
import sys
import tempfile
import time

from tokenizers import Tokenizer

BATCH = 1000


def texts_of(corpus):
    with open(corpus, encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def encode(tokenizer, corpus):
    tokenizer, texts = Tokenizer.from_file(tokenizer), texts_of(corpus)
    began = time.perf_counter()
    tokens = 0
    for start in range(0, len(texts), BATCH):
        batch = tokenizer.encode_batch_fast(texts[start : start + BATCH], add_special_tokens=False)
        tokens += sum(len(encoding) for encoding in batch)
    return {"seconds": time.perf_counter() - began, "tokens": tokens}


def map_dataset(path, corpus, processes):
    import datasets

    datasets.disable_progress_bars()
    tokenizer = Tokenizer.from_file(path)

    def tokenize(batch):
        return {"input_ids": [e.ids for e in tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)]}

    with tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        data = datasets.load_dataset("json", data_files=corpus, split="train", cache_dir=cache)
        data = data.map(tokenize, batched=True, num_proc=processes, remove_columns=["text"])
        return {"seconds": time.perf_counter() - began, "documents": len(data)}


def start_worker(path):
    global TOKENIZER
    TOKENIZER = Tokenizer.from_file(path)


def encode_line(line):
    return TOKENIZER.encode(json.loads(line)["text"], add_special_tokens=False).ids


def preprocess(path, corpus, processes, output):
    import numpy

    began = time.perf_counter()
    lengths = []
    with multiprocessing.Pool(processes, start_worker, (path,)) as pool, open(output + ".bin", "wb") as file:
        with open(corpus, encoding="utf-8") as lines:
            for ids in pool.imap(encode_line, lines, 32):
                file.write(numpy.array(ids + [0], dtype=numpy.uint16).tobytes())
                lengths.append(len(ids) + 1)
    with open(output + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        sizes = numpy.array(lengths, dtype=numpy.int32)
        file.write(sizes.tobytes())
        file.write(((numpy.cumsum(sizes, dtype=numpy.int64) - sizes) * 2).tobytes())
        file.write(numpy.arange(len(lengths) + 1, dtype=numpy.int64).tobytes())
    return {"seconds": time.perf_counter() - began, "tokens": sum(lengths)}


def main():
    what, *args = sys.argv[1:]
    if what == "encode":
        os.environ["RAYON_NUM_THREADS"] = "1"
        result = encode(*args)
    elif what == "map":
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
        result = map_dataset(args[0], args[1], int(args[2]))
    else:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        result = preprocess(args[0], args[1], int(args[2]), args[3])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
