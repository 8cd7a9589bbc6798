#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails if a clone of a kernel (STEPFORGE_SIMD_CLONES) has loops that the compiler did not vectorise.

    tests/kernels/vector_clones.py LIBRARY [--print]

Counts the arithmetic instructions of each clone in the library's machine code, of vectors and of single numbers. A clone that
computes with floating-point numbers must have vectors. A kernel has the same loops in each of its clones, so the clone for AVX2
must have about as many vector instructions as the one for AVX-512: fewer than half say that a loop of several is not vectorised.
Results are right in either case, so that no other test sees it.
"""
import collections
import re
import subprocess
import sys

CLONE = re.compile(r"^[0-9a-f]+ <(.*)\.(arch_x86_64_v4|arch_x86_64_v3|default)(?:\.[0-9.]+)?>:$")
OTHER = re.compile(r"^[0-9a-f]+ <.*>:$")
ARITHMETIC = re.compile(r"v?(?:add|sub|mul|div|min|max|sqrt|fn?m(?:add|sub)\d*)([ps])[sd]")
LEAST = 5  # instructions for single numbers: fewer are the end of a sum, or outside of loops
SHARE = 0.5


def count(library):
    """{kernel: {clone: [of vectors, of single numbers]}}"""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True)
    kernels, counts = collections.defaultdict(dict), None
    for line in listing.stdout.splitlines():
        fields = line.split("\t")
        if len(fields) < 2:
            if found := CLONE.match(line):
                counts = kernels[found[1]].setdefault(found[2], [0, 0])
            elif OTHER.match(line):
                counts = None
        elif counts is not None and (found := ARITHMETIC.match(fields[1])):
            counts[found[1] == "s"] += 1
    return kernels


def faults(kernels):
    for kernel, clones in sorted(kernels.items()):
        for clone, (vectors, singles) in clones.items():
            if singles >= LEAST and vectors == 0:
                yield f"{kernel}, {clone}: {singles} arithmetic instructions, none of vectors"
        most = clones.get("arch_x86_64_v4", [0, 0])[0]
        vectors, singles = clones.get("arch_x86_64_v3", [0, 0])
        if singles >= LEAST and 0 < vectors < SHARE * most:
            yield f"{kernel}, arch_x86_64_v3: {vectors} arithmetic instructions of vectors, arch_x86_64_v4 has {most}"


def main(library, *options):
    kernels = count(library)
    if "--print" in options:
        for kernel, clones in sorted(kernels.items()):
            print(kernel, clones)
    if len(kernels) < 50:
        sys.exit(f"{library}: only {len(kernels)} kernels with clones were found")
    found = list(faults(kernels))
    if found:
        demangled = subprocess.run(["c++filt"], input="\n".join(found), check=True, capture_output=True, text=True).stdout
        sys.exit(f"{library}: {len(found)} clones are not vectorised\n{demangled}")


if __name__ == "__main__":
    main(*sys.argv[1:])
