#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the project's rules that a compiler does not check. Prints path:line: message for each error; exit code 1 if there are any.

    tools/lint/check_rooms.py              checks tracked files, and untracked ones that git does not ignore
    tools/lint/check_rooms.py --tree DIR   checks all files below DIR
    tools/lint/check_rooms.py --draw       prints which room includes which, as a Mermaid graph
    tools/lint/check_rooms.py --sizes      prints files of over 300 lines
    tools/lint/check_rooms.py --write      writes what follows from rooms.json: the line "May include" of each
                                           room's README and the table of rooms in docs/architecture.md

stepforge/rooms.json lists the rooms and what each may include. The rules:

- a room includes only rooms that it may include
- rooms above the libtorch line include no torch header, directly or indirectly
- headers do not include fmt, spdlog or toml++
- there is no mutable global state
- layers and models know no rank
- tensors are made on a device that the code names (devices.py)
- numbers of a step that depend on its data stay on the compute device (step_scalars.py)
- no file exceeds 800 lines
- each room has a README.md of at most 80 lines that lists what the room may include
- the table of rooms in docs/architecture.md is that of rooms.json
- there are no absolute paths of a machine and no to-do notes
- paths in documents exist
"""
import argparse
import json
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

from cpp_source import mutable_state, own_includes, system_includes, without_literals
from devices import check_devices
from step_scalars import check_step_scalars

TORCH_HEADER = re.compile(r"^(ATen|torch|c10)/")
FORMATTING_HEADER = re.compile(r"^(fmt|spdlog|toml\+\+)/")
RANK_WORDS = re.compile(r"\b(rank|world_size|ProcessGroup|DeviceMesh|mesh)\b")
# libtorch has one CPU allocator per process; it is the only object that all ranks of a process share. Its devices are process-wide too,
# and so are those that are simulated for tests. On the CPU, CUDA's built-in variables belong to a thread.
STATEFUL_FILES = {"stepforge/kernels/cpu_allocator.cpp", "stepforge/cuda/cuda_on_cpu.h", "stepforge/sim/guard.cpp", "stepforge/sim/machine.cpp", "stepforge/sim/memory_map.cpp"}
MAP_FILE, MAP_TABLE = "docs/architecture.md", re.compile(r"^\| room \| contents \|\n(?:\|.*\n)*", re.MULTILINE)
CODE = {".h", ".cpp"}
TEXT = CODE | {".py", ".sh", ".cmake", ".md", ".toml", ".txt", ".json", ""}
SIZED = CODE | {".py", ".sh", ".cmake"}
MAX_LINES, LONG_FILE_LINES, README_LINES = 800, 300, 80
# Split so that this file passes its own check.
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(" + "|".join(["root", "work", "home"]) + r")/")
MARKDOWN_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
QUOTED_PATH = re.compile(r"`([\w.-]+/[\w./-]+\.(?:h|cpp|cu|py|sh|toml|txt|cmake|md))`")
TODO_NOTE = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


class Rooms:
    """The rooms, in the order of stepforge/rooms.json, and what each may include."""

    def __init__(self, path):
        rooms = json.loads(path.read_text())["rooms"]
        self.may_include = {room["name"]: room["may_include"] for room in rooms}
        self.purpose = {room["name"]: room.get("purpose", "") for room in rooms}
        self.torch_free = {room["name"] for room in rooms if room["library"] not in ("torch", "device")}

    def room_of(self, path):
        """The innermost room of a source file: app/torch is a room of its own."""
        parts = PurePosixPath(path).parts
        if len(parts) < 3 or parts[0] != "stepforge":
            return None
        inner = "/".join(parts[1:3])
        return inner if inner in self.may_include else parts[1]

    def is_torch_free(self, path):
        return self.room_of(path) in self.torch_free

    def readme_line(self, room):
        names = ", ".join(f"`{name}`" for name in self.may_include[room])
        return f"May include: {names or 'nothing'}."

    def table(self):
        """The rooms as a Markdown table, with the libtorch line between them."""
        above = [f"| `{room}` | {text} |" for room, text in self.purpose.items() if room in self.torch_free]
        below = [f"| `{room}` | {text} |" for room, text in self.purpose.items() if room not in self.torch_free]
        return "\n".join(["| room | contents |", "|---|---|", *above, "| — | *the libtorch line* |", *below]) + "\n"


ROOMS_FILE = Path(__file__).resolve().parents[2] / "stepforge/rooms.json"


class Tree:
    """The text files of a project by path."""

    def __init__(self, root, paths, rooms):
        self.root = root
        self.rooms = rooms
        self.text = {}
        for path in paths:
            if (root / path).is_file() and PurePosixPath(path).suffix in TEXT:
                self.text[path] = (root / path).read_bytes().decode("utf-8", "replace")
        self.faults = []

    def fault(self, path, line, message):
        self.faults.append((path, line, message))

    def code(self, *prefixes):
        for path, text in sorted(self.text.items()):
            if PurePosixPath(path).suffix in CODE and path.startswith(prefixes or ("stepforge/",)):
                yield path, text

    def line_of(self, path, needle):
        position = self.text[path].find(needle)
        return self.text[path].count("\n", 0, max(position, 0)) + 1


def check_includes(tree):
    rooms = tree.rooms
    for path, text in tree.code():
        room = rooms.room_of(path)
        if room not in rooms.may_include:
            tree.fault(path, 1, f"{room} is not a room of stepforge/rooms.json: {' '.join(rooms.may_include)}")
            continue
        for include in own_includes(text):
            other = rooms.room_of(include)
            if other and other != room and other not in rooms.may_include[room]:
                tree.fault(path, tree.line_of(path, f'"{include}"'), f'room {room} includes "{include}", but may not include {other}')


def check_rooms_file(tree):
    """Rooms include only rooms that come before them in the file, so there is no cycle."""
    above = set()
    for room, others in tree.rooms.may_include.items():
        for other in others:
            if other not in above:
                tree.fault("stepforge/rooms.json", 1, f"{room} may include {other}, which does not come before it")
            elif room in tree.rooms.torch_free and other not in tree.rooms.torch_free:
                tree.fault("stepforge/rooms.json", 1, f"{room} is torch-free but may include {other}")
        above.add(room)


def torch_include_chain(tree, path, seen):
    """The chain of includes from `path` to a torch header, or None."""
    for include in system_includes(tree.text[path]) + own_includes(tree.text[path]):
        if TORCH_HEADER.match(include):
            return [path, include]
    for include in own_includes(tree.text[path]):
        if include in tree.text and include not in seen:
            seen.add(include)
            chain = torch_include_chain(tree, include, seen)
            if chain:
                return [path, *chain]
    return None


def check_torch_line(tree):
    for path, _ in tree.code():
        if tree.rooms.is_torch_free(path):
            chain = torch_include_chain(tree, path, {path})
            if chain:
                tree.fault(path, 1, "is above the libtorch line but includes a torch header: " + " -> ".join(chain[1:]))


def check_headers(tree):
    for path, text in tree.code():
        if not path.endswith(".h"):
            continue
        for include in system_includes(text) + own_includes(text):
            if FORMATTING_HEADER.match(include):
                tree.fault(path, tree.line_of(path, include), f"<{include}> in a header; torch brings a different version: include it in a .cpp file")
        if not re.search(r"^#pragma once$", text, re.MULTILINE):
            tree.fault(path, 1, "a header without #pragma once")


def check_state(tree):
    for path, text in tree.code():
        if path in STATEFUL_FILES:
            continue
        for line, declaration in mutable_state(text):
            tree.fault(path, line, f"mutable static state: `{declaration[:80]}`; pass it in an object instead")


def check_ranks(tree):
    for path, text in tree.code("stepforge/nn/"):
        for number, line in enumerate(without_literals(text).split("\n"), 1):
            word = RANK_WORDS.search(line)
            if word and not line.lstrip().startswith("#"):
                tree.fault(path, number, f"`{word.group(0)}` in a layer: layers are single-device code")


def check_sizes(tree):
    for path, text in sorted(tree.text.items()):
        lines = text.count("\n")
        if PurePosixPath(path).suffix in SIZED and lines > MAX_LINES:
            tree.fault(path, lines, f"{lines} lines, but at most {MAX_LINES} are allowed: split the file by ideas")


def check_readmes(tree):
    for room in sorted({tree.rooms.room_of(path) for path, _ in tree.code()} & tree.rooms.may_include.keys()):
        path = f"stepforge/{room}/README.md"
        if path not in tree.text:
            tree.fault(path, 1, f"room {room} has no README.md: write what it is for, what it may include and where to start reading")
        elif tree.text[path].count("\n") > README_LINES:
            tree.fault(path, README_LINES, f"over {README_LINES} lines; a room's README fits on one page")
        elif tree.rooms.readme_line(room) not in tree.text[path].split("\n"):
            tree.fault(path, 1, f"does not contain the line `{tree.rooms.readme_line(room)}`: run tools/lint/check_rooms.py --write")


def check_map(tree):
    table = MAP_TABLE.search(tree.text.get(MAP_FILE, ""))
    if MAP_FILE in tree.text and (table is None or table.group(0) != tree.rooms.table()):
        tree.fault(MAP_FILE, tree.line_of(MAP_FILE, "| room | contents |"), "the table of rooms is not that of stepforge/rooms.json: run tools/lint/check_rooms.py --write")


def write_map(root, rooms):
    path = root / MAP_FILE
    path.write_text(MAP_TABLE.sub(lambda match: rooms.table(), path.read_text()))


def write_readmes(root, rooms):
    for room in rooms.may_include:
        path = root / "stepforge" / room / "README.md"
        text = re.sub(r"^May include: .*$", lambda match: rooms.readme_line(room), path.read_text(), flags=re.MULTILINE)
        path.write_text(text)


def check_words(tree):
    for path, text in sorted(tree.text.items()):
        for number, line in enumerate(text.split("\n"), 1):
            for pattern, message in ((MACHINE_PATH, "an absolute path of a machine"), (TODO_NOTE, "a to-do note")):
                word = pattern.search(line)
                if word:
                    tree.fault(path, number, f"{message}: `{word.group(0)}`")


def check_references(tree):
    """Paths in documents exist: links relative to the document, names in backticks also below the root, stepforge/ and tests/."""
    for path, text in sorted(tree.text.items()):
        if not path.endswith(".md"):
            continue
        folder = tree.root / PurePosixPath(path).parent
        for number, line in enumerate(text.split("\n"), 1):
            for link in MARKDOWN_LINK.findall(line):
                if not (folder / link).exists():
                    tree.fault(path, number, f"links to {link}, which does not exist")
            for name in QUOTED_PATH.findall(line):
                if not any((start / name).is_file() for start in (folder, tree.root, tree.root / "stepforge", tree.root / "tests")):
                    tree.fault(path, number, f"names `{name}`, which does not exist")


CHECKS = [check_rooms_file, check_includes, check_torch_line, check_headers, check_state, check_ranks, check_sizes, check_readmes, check_map, check_words, check_references, check_step_scalars, check_devices]


def faults_of(tree):
    for check in CHECKS:
        check(tree)
    return tree.faults


def git_files(root):
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    return [path for path in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0") if path]


def below(root):
    return [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]


def draw(tree):
    """Prints arrows for direct includes, without those that follow from other arrows."""
    includes = {room: set() for room in tree.rooms.may_include}
    for path, text in tree.code():
        for include in own_includes(text):
            other = tree.rooms.room_of(include)
            if other and other != tree.rooms.room_of(path):
                includes[tree.rooms.room_of(path)].add(other)
    reach = {}
    for room in includes:
        reach[room] = includes[room].union(*(reach.get(other, set()) for other in includes[room]))
    print("graph BT")
    for room in includes:
        for other in sorted(includes[room], key=list(includes).index):
            if not any(other in reach.get(between, set()) for between in includes[room]):
                print(f"  {room} --> {other}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tree", type=Path, help="check all files below this folder instead of those that git knows")
    parser.add_argument("--draw", action="store_true", help="print which room includes which as a Mermaid graph")
    parser.add_argument("--sizes", action="store_true", help=f"print files of over {LONG_FILE_LINES} lines")
    parser.add_argument("--write", action="store_true", help='write the line "May include" of each README and the table of rooms')
    options = parser.parse_args()
    root = options.tree or Path(__file__).resolve().parents[2]
    rooms = Rooms(ROOMS_FILE)
    if options.write:
        write_readmes(root, rooms)
        write_map(root, rooms)
        return 0
    tree = Tree(root, below(root) if options.tree else git_files(root), rooms)
    if options.draw:
        draw(tree)
        return 0
    if options.sizes:
        for path, text in sorted(tree.text.items()):
            if PurePosixPath(path).suffix in SIZED and text.count("\n") > LONG_FILE_LINES:
                print(f"{text.count(chr(10)):5} {path}")
        return 0
    faults = faults_of(tree)
    for path, line, message in faults:
        print(f"{path}:{line}: {message}")
    if faults:
        print(f"check_rooms: {len(faults)} errors", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
