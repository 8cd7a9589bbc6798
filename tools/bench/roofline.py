#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the kernels with libtorch's, and with what the processor does at most.

    tools/bench/roofline.py [--threads 2]

Runs bench_peak and bench_kernels. A kernel's bound is the longer of two times: its operations at the peak of multiply-adds (fp32, or bf16
for products of bf16), and its bytes, each read or written once, at the rate of a copy. Intensity is operations per byte. A share above 100 % means
that its arrays stay in a cache.
"""
import argparse
import json
import subprocess

from machine import ROOT, peak, print_machine


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print_machine()
    rates = peak(options.threads)
    bf16 = f"{rates['bf16'] / 1e9:.0f}" if rates["bf16"] else "no"
    print(f"{options.threads} threads: {rates['fp32'] / 1e9:.0f} GFLOP/s in fp32, {bf16} in bf16, {rates['copy'] / 1e9:.1f} GB/s copied")
    print(f"{'':44}{'ms':>9}{'intensity':>11}{'GFLOP/s':>9}{'GB/s':>8}{'bound':>9}{'share':>7}{'libtorch ms':>13}{'ratio':>7}")
    program = subprocess.Popen([ROOT / "build/release/bench_kernels", str(options.threads)], stdout=subprocess.PIPE, text=True)
    for line in program.stdout:
        kernel = json.loads(line)
        seconds, flops, moved = kernel["ms"] / 1000, kernel["flops"], kernel["bytes"]
        compute = flops / (rates["bf16"] if kernel["bf16"] and rates["bf16"] else rates["fp32"])
        memory = moved / rates["copy"]
        bound = "compute" if compute > memory else "memory"
        theirs = kernel["libtorch_ms"]
        print(
            f"{kernel['name']:44}{kernel['ms']:9.3f}{flops / moved:11.1f}{1e-9 * flops / seconds:9.0f}{1e-9 * moved / seconds:8.1f}"
            f"{bound:>9}{max(compute, memory) / seconds:7.0%}" + (f"{theirs:13.3f}{theirs / kernel['ms']:7.2f}" if theirs else ""),
            flush=True,
        )
    if program.wait() != 0:
        raise SystemExit("bench_kernels failed")


if __name__ == "__main__":
    main()
