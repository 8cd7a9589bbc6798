# SPDX-License-Identifier: Apache-2.0
"""Runs llm.c's train_gpt2, if the user has built it, on random weights and tokens."""
import array
import random
import re
import subprocess
import tempfile
from pathlib import Path

from machine import environment

POSITIONS, VOCABULARY, LAYERS, HEADS, WIDTH, PADDED = 1024, 50257, 12, 12, 768, 50304
TOKENS = 256  # of a step: 4 rows of 64, fixed in train_gpt2.c
NOISE = array.array("f", (random.Random(1).gauss(0.0, 0.02) for _ in range(1 << 16))).tobytes()


def header(*values):
    return array.array("i", [*values, *[0] * (256 - len(values))]).tobytes()


def write_noise(file, count):
    while count > 0:
        count -= file.write(NOISE[: 4 * min(count, len(NOISE) // 4)]) // 4


def write_constant(file, value, count):
    file.write(array.array("f", [value]).tobytes() * count)


def write_model(path):
    """The tensors in the order of llm.c's version 3: embeddings; of all layers each kind together; the last norm."""
    with open(path, "wb") as file:
        file.write(header(20240326, 3, POSITIONS, VOCABULARY, LAYERS, HEADS, WIDTH, PADDED))
        write_noise(file, (PADDED + POSITIONS) * WIDTH)
        for first, inner, outer in ((True, WIDTH, 3 * WIDTH), (False, WIDTH, WIDTH), (True, WIDTH, 4 * WIDTH), (False, 4 * WIDTH, WIDTH)):
            if first:
                write_constant(file, 1.0, LAYERS * WIDTH)
                write_constant(file, 0.0, LAYERS * WIDTH)
            write_noise(file, LAYERS * inner * outer)
            write_constant(file, 0.0, LAYERS * outer)
        write_constant(file, 1.0, WIDTH)
        write_constant(file, 0.0, WIDTH)


def write_tokens(path, count):
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = random.Random(2)
    tokens = array.array("H", (generator.randrange(VOCABULARY) for _ in range(count)))
    path.write_bytes(header(20240520, 1, count) + tokens.tobytes())


def step_seconds(program, threads, steps=6):
    """Of the first steps; the program is stopped before it generates text."""
    with tempfile.TemporaryDirectory(prefix="stepforge-bench.") as folder:
        write_model(Path(folder) / "gpt2_124M.bin")
        for name in ("train", "val"):
            write_tokens(Path(folder) / f"dev/data/tinyshakespeare/tiny_shakespeare_{name}.bin", 16 * TOKENS + 1)
        command = ["stdbuf", "-oL", Path(program).resolve()]
        process = subprocess.Popen(command, cwd=folder, env=environment(threads), stdout=subprocess.PIPE, text=True)
        seconds = []
        try:
            for line in process.stdout:
                found = re.search(r"took ([\d.]+) ms", line)
                if found:
                    seconds.append(float(found[1]) / 1000)
                if len(seconds) == steps:
                    break
        finally:
            process.kill()
            process.wait()
        if len(seconds) < steps:
            raise SystemExit(f"{program} ended after {len(seconds)} steps")
        return seconds
