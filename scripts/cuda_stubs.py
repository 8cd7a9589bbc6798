#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes stand-ins for CUDA libraries that libtorch_cuda.so names and that are not there, so that it can be loaded without them.

    scripts/cuda_stubs.py FOLDER      FOLDER: lib in the folder of PyTorch

A stand-in has the name that the loader looks for, and defines the functions that the libraries of FOLDER take from it. Each ends the process
with a message that names the function, the library and the remedy. They are written into FOLDER, which libtorch searches last, so a library that
is installed later is found first; the next run removes its stand-in. FOLDER/stand-ins.txt lists them.

Only libraries that training calls nothing of get one. Libraries of the system do not count as there: what is made is the same on every machine
that shares FOLDER.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = "libtorch_cuda.so"
LIST = "stand-ins.txt"
REMEDY = "scripts/setup.sh cuda-full"
MARK = "of which there is only a stand-in"
UNUSED = ("cufft", "cufile", "curand", "cusparse", "nvshmem")  # their names begin so

SOURCE = """\
#include <stdio.h>
#include <stdlib.h>

const char stepforge_stand_in[] = "%(mark)s";

static void refuse(const char* function) {
  fprintf(stderr, "%%s was called, a function of %(library)s, %(mark)s: `%(remedy)s` fetches the library\\n", function);
  abort();
}
"""


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}).stdout


class Library:
    """What the loader reads of a library: its folders, the libraries that it names, and the functions that it takes from others."""

    def __init__(self, path):
        self.path = path
        dynamic = output_of("readelf", "--wide", "--dynamic", str(path))
        self.needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
        self.folders = [Path(part.replace("$ORIGIN", str(path.parent))) for text in paths for part in text.split(":") if part]

    def versions(self):
        """The versions of symbols that it takes, as (version, library)."""
        result, library = set(), ""
        for line in output_of("readelf", "--wide", "--version-info", str(self.path)).splitlines():
            if found := re.search(r"Version: \d+\s+File: (\S+)", line):
                library = found[1]
            elif found := re.search(r"Name: (\S+)\s+Flags:.*Version: \d+", line):
                result.add((found[1], library))
        return result

    def taken(self):
        """Undefined functions as (name, version or ""), without weak ones."""
        for line in output_of("nm", "--dynamic", "--undefined-only", str(self.path)).splitlines():
            kind, symbol = line.split()[-2:]
            if kind == "U":
                yield symbol.replace("@@", "@").partition("@")[::2]


def stem(library):
    """cusparseLt of libcusparseLt.so.0."""
    return library.removeprefix("lib").partition(".so")[0]


def owner_of(name, version, missing, versions):
    """Which of the missing libraries a function is from: by its version, or the longest stem that its name begins with."""
    if version:
        return next((library for library in missing if (version, library) in versions), None)
    fitting = [library for library in missing if name.lower().startswith(stem(library).lower())]
    return max(fitting, key=lambda library: len(stem(library)), default=None)


def missing_functions(root):
    """The functions, as (name, version), that root and the libraries that it loads take from each library that is missing."""
    functions = defaultdict(set)
    waiting, seen = [root], set()
    while waiting:
        library = Library(waiting.pop())
        missing = []
        for name in library.needed:
            places = [folder / name for folder in library.folders if (folder / name).exists() and not is_stand_in(folder / name)]
            if places and name not in seen:
                waiting.append(places[0])
            elif not places and stem(name).startswith(UNUSED):
                missing.append(name)
                functions[name]  # even if nothing is taken from it
            seen.add(name)
        if not missing:
            continue
        versions = library.versions()
        for name, version in library.taken():
            if owner := owner_of(name, version, missing, versions):
                functions[owner].add((name, version))
    return functions


def is_stand_in(library):
    return library.stat().st_size < 1_000_000 and MARK.encode() in library.read_bytes()


def write_stand_in(folder, library, functions):
    """Compiles it, and puts it into place by one rename."""
    source = SOURCE % {"library": library, "mark": MARK, "remedy": REMEDY}
    script = defaultdict(list)
    for name, version in sorted(functions):
        source += f'void {name}(void) {{ refuse("{name}"); }}\n'
        script[version].append(name)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        code, versions, output = (Path(work) / name for name in ("stand_in.c", "versions", library))
        code.write_text(source)
        # A script has either one node without a name, or nodes with names.
        nodes = [f"{node} {{ global: {' '.join(name + ';' for name in names)} }};" for node, names in script.items() if node]
        versions.write_text("\n".join(nodes))
        with_versions = [f"-Wl,--version-script={versions}"] if nodes else []
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-w", f"-Wl,-soname,{library}", *with_versions, "-o", str(output),
                        str(code)], check=True)  # fmt: skip
        output.rename(folder / library)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    if not (folder / ROOT).exists():
        sys.exit(f"error: {folder} has no {ROOT}: is it the folder lib of a PyTorch with CUDA?")
    functions = missing_functions(folder / ROOT)
    for library, taken in sorted(functions.items()):
        write_stand_in(folder, library, taken)
        print(f"    {library}: a stand-in with {len(taken)} functions")
    if not functions:
        print("    none is needed")
    for library in folder.glob("lib*.so*"):
        if library.name not in functions and is_stand_in(library):
            library.unlink()
    (folder / LIST).write_text("".join(f"{library}\n" for library in sorted(functions)))


if __name__ == "__main__":
    main()
