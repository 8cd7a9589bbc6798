#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on the files that need it, on all cores; every warning is an error.

    tools/lint/tidy.py            all torch-free files, and other files that differ from the last commit
    tools/lint/tidy.py --all      all files (half a minute for each that includes libtorch)
    tools/lint/tidy.py FILE...    these files

Files of one folder and the same flags are checked eight at a time, as the unity builds compile them: most of the time goes into the
headers, which are then read once. A file that passed before with the same text, project headers, flags and rules is not checked again.
Hashes of these are kept in the user's cache folder, so they also serve a new clone.
"""
import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from check_rooms import ROOMS_FILE, Rooms
from cpp_source import own_includes

ROOT = Path(__file__).resolve().parents[2]
CLANG_TIDY = "clang-tidy-19"
DATABASE = ROOT / "build/lint/compile_commands.json"
# Without -fopenmp, which needs clang's own omp.h: its package conflicts with the OpenMP of other LLVM versions.
KEPT_FLAGS = ("-I", "-D", "-std=")
# CMAKE_UNITY_BUILD_BATCH_SIZE of the presets: names in anonymous namespaces are unique in a folder.
BATCH = 8


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stepforge" / "tidy"


def flags_of(command):
    """The flags that change what clang parses, without gcc's own flags and the precompiled header."""
    flags = []
    arguments = iter(shlex.split(command))
    for argument in arguments:
        if argument == "-isystem":
            flags += [argument, next(arguments)]
        elif argument.startswith(KEPT_FLAGS):
            flags.append(argument)
    # No warnings from headers that are not ours.
    return ["-isystem" + flag[2:] if flag.startswith("-I") and not flag[2:].startswith(str(ROOT)) else flag for flag in flags]


def read_database():
    """Source file, relative -> flags."""
    if not DATABASE.exists():
        sys.exit(f"{DATABASE} is missing: run `cmake --preset lint` first")
    commands = {}
    for entry in json.loads(DATABASE.read_text()):
        path = Path(entry["file"])
        if path.is_relative_to(ROOT / "stepforge"):
            commands[path.relative_to(ROOT).as_posix()] = flags_of(entry["command"])
    return commands


def headers_of(path, found):
    for include in own_includes((ROOT / path).read_text()):
        header = include
        if header.startswith("stepforge/") and header not in found and (ROOT / header).exists():
            found.add(header)
            headers_of(header, found)
    return found


def folder_checks(path):
    """What a folder's own .clang-tidy adds to the checks; clang-tidy itself looks only beside the file that includes the batch."""
    own = ROOT / os.path.dirname(path) / ".clang-tidy"
    found = re.search(r"^Checks: *'?([^'\n]*)'?$", own.read_text(), re.MULTILINE) if own.exists() else None
    return found[1] if found else ""


def key_of(path, flags, version):
    digest = hashlib.sha256()
    for part in [version, (ROOT / ".clang-tidy").read_text(), folder_checks(path), path, *(flag.replace(str(ROOT), "") for flag in flags)]:
        digest.update(part.encode() + b"\0")
    for file in [path, *sorted(headers_of(path, set()))]:
        digest.update(file.encode() + b"\0" + (ROOT / file).read_bytes() + b"\0")
    return digest.hexdigest()


def changed_files():
    shown = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain", "-uall"], check=True, capture_output=True, text=True)
    return {line[3:] for line in shown.stdout.splitlines()}


def batches_of(paths, commands):
    """Lists of at most BATCH paths of one folder with the same flags."""
    groups = {}
    for path in paths:
        groups.setdefault((os.path.dirname(path), tuple(commands[path])), []).append(path)
    return [group[i : i + BATCH] for group in groups.values() for i in range(0, len(group), BATCH)]


def check(number, paths, flags):
    source = ROOT / f"build/lint/tidy-{os.getpid()}-{number}.cpp"
    source.write_text("".join(f'#include "{ROOT / path}"  // NOLINT(bugprone-suspicious-include)\n' for path in paths))
    command = [CLANG_TIDY, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", f"--checks={folder_checks(paths[0])}", str(source), "--", "-xc++", *flags, "-w"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    source.unlink()
    # stderr counts warnings in other projects' headers; it matters only for a failure without a warning.
    return done.returncode, (done.stdout or done.stderr).replace(str(ROOT) + "/", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--all", action="store_true", help="also check the files that include libtorch")
    parser.add_argument("files", nargs="*", help="check only these source files")
    options = parser.parse_args()
    commands = read_database()
    rooms = Rooms(ROOMS_FILE)
    version = subprocess.run([CLANG_TIDY, "--version"], check=True, capture_output=True, text=True).stdout
    changed = changed_files()
    wanted = options.files or [path for path in commands if options.all or rooms.is_torch_free(path) or path in changed]
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    keys = {}
    for path in sorted(wanted):
        if path not in commands:
            sys.exit(f"{path} is not compiled by the release build")
        keys[path] = key_of(path, commands[path], version)
    to_do = [path for path, key in keys.items() if not (cache / key).exists()]
    print(f"clang-tidy: {len(wanted)} files, {len(wanted) - len(to_do)} unchanged since they passed", flush=True)

    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        batches = batches_of(to_do, commands)
        jobs = [(paths, pool.submit(check, number, paths, commands[paths[0]])) for number, paths in enumerate(batches)]
        for number, (paths, job) in enumerate(jobs, 1):
            code, output = job.result()
            if code == 0:
                for path in paths:
                    (cache / keys[path]).touch()
            else:
                failed += 1
                print(output.rstrip(), flush=True)
            if sys.stderr.isatty():
                print(f"\r\033[K[{number}/{len(jobs)}] {paths[0]}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty() and to_do:
        print("\r\033[K", end="", file=sys.stderr)
    if failed:
        print(f"clang-tidy: {failed} of {len(batches)} batches with warnings", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
