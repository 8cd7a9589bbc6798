#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares tokenizing and preparing text with Hugging Face tokenizers, datasets.map and Megatron-LM's preprocessing.

    tools/bench/data.py --program build/release/stepforge --parts build/release/bench_text --python VENV/bin/python [--rounds 3]

Every program runs alone, in a process of its own with cold caches, in the same order in each round. A ratio is that of the medians of
all rounds. Noise is the largest spread of one program's rounds: a ratio closer to 1 than that means nothing.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOKENIZERS = ("gpt2", "llama3", "qwen")
COPIES = 4  # of the corpus, where the start of a process would count otherwise


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.corpus = folder / "corpus.jsonl"
        self.large = folder / "large.jsonl"
        self.output = Path(tempfile.mkdtemp(dir=folder))
        self.seconds = defaultdict(list)
        self.tokens = {}
        self.runs = []

    def tokenizer(self, name):
        return self.folder / name / "tokenizer.json"

    def call(self, *command):
        print(f"  {' '.join(str(word) for word in command[:2])}", file=sys.stderr, flush=True)
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def parts(self, key, *arguments):
        result = json.loads(self.call(self.options.parts, *arguments))
        self.note(key, result)
        return result

    def peer(self, key, *arguments):
        self.note(key, json.loads(self.call(self.options.python, "-B", HERE / "data_peer.py", *arguments)))

    def note(self, key, result):
        self.seconds[key].append(result["seconds"])
        if "tokens" in result:
            self.tokens[key] = result["tokens"]

    def build(self, key, corpus):
        prefix = self.output / key
        began = time.perf_counter()
        self.call(self.options.program, "data", "build", "--input", corpus, "--tokenizer", self.tokenizer("llama3"),
                  "--output-prefix", prefix, "--workers", 2)
        self.seconds[key].append(time.perf_counter() - began)
        for file in self.output.glob("*"):
            file.unlink()

    def round(self):
        for name in TOKENIZERS:
            self.parts(f"ours {name}", "encode", self.tokenizer(name), self.corpus, 1)
            self.peer(f"hf {name}", "encode", self.tokenizer(name), self.corpus)
        self.parts("large 1", "encode", self.tokenizer("llama3"), self.large, 1)
        self.parts("large 2", "encode", self.tokenizer("llama3"), self.large, 2)
        self.build("large build", self.large)
        self.build("build", self.corpus)
        self.peer("map", "map", self.tokenizer("llama3"), self.corpus, 2)
        self.peer("preprocess", "preprocess", self.tokenizer("llama3"), self.corpus, 2, self.output / "peer")
        self.parts("read", "read", self.large)
        self.runs.append(json.loads(self.call(self.options.parts, "runs", self.tokenizer("llama3"))))

    def median(self, key):
        return statistics.median(self.seconds[key])

    def ratio(self, slower, faster):
        return self.median(slower) / self.median(faster)

    def noise(self):
        return max(max(values) / min(values) - 1.0 for values in self.seconds.values())

    def report(self):
        megabytes = self.corpus.stat().st_size / 1e6
        print(f"{processor()}; {self.options.rounds} rounds; {megabytes:.0f} MB of JSON Lines")
        print("\nEncoding on one core, against Hugging Face tokenizers on one thread:")
        for name in TOKENIZERS:
            if self.tokens[f"ours {name}"] != self.tokens[f"hf {name}"]:
                sys.exit(f"{name}: {self.tokens[f'ours {name}']} tokens, but Hugging Face has {self.tokens[f'hf {name}']}")
            print(f"  {name:8}{megabytes / self.median(f'ours {name}'):7.1f} MB/s  x {self.ratio(f'hf {name}', f'ours {name}'):.1f}")
        print(f"Two threads against one: x {self.ratio('large 1', 'large 2'):.2f}")
        print("\ndata build on two cores:")
        print(f"  {megabytes / self.median('build'):.1f} MB/s  x {self.ratio('map', 'build'):.1f} against datasets.map  "
              f"x {self.ratio('preprocess', 'build'):.1f} against Megatron's way of preprocessing")
        print(f"  {self.ratio('large 2', 'large build'):.0%} of the speed of encoding alone ({megabytes * COPIES:.0f} MB)")
        print(f"Reading JSON Lines on one core: {megabytes * COPIES / self.median('read'):.0f} MB/s")
        print("\nSeconds for one and two megabytes of hard texts:")
        for number, hard in enumerate(self.runs[0]):
            one = min(run[number]["one"] for run in self.runs)
            two = min(run[number]["two"] for run in self.runs)
            print(f"  {hard['name']:20}{one:8.3f}{two:8.3f}  x {two / one:.2f}")
        print(f"\nNoise: rounds of one program differ by up to {self.noise():.1%}.")


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--parts", type=Path, required=True, help="bench_text")
    parser.add_argument("--python", type=Path, required=True, help="a python with tokenizers and datasets")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/data"))
    options = parser.parse_args()
    if not (options.folder / "qwen/tokenizer.json").exists():
        subprocess.run([options.python, "-B", HERE / "corpus.py", options.folder], check=True)
    bench = Bench(options, options.folder)
    bench.large.write_bytes(bench.corpus.read_bytes() * COPIES)
    for number in range(1, options.rounds + 1):
        print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
        bench.round()
    bench.report()
    (options.folder / "results.json").write_text(json.dumps({"seconds": bench.seconds, "runs": bench.runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
