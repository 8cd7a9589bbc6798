#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants bugs, runs the tests against each, and prints the mutation score.

    tools/mutants/mutants.py [--jobs N] [--only NAME,NAME] [--named] [--list]

mutants.toml lists the bugs: a piece of source and its replacement, in which the word MUTANT stands for "this bug is switched on".
All bugs go into one copy of the sources under build/mutants, where MUTANT becomes a check of the environment variable
STEPFORGE_MUTANT. So one build holds all bugs, and the variable selects one for a test run. The original sources do not change.

For each bug the tests run until one fails, starting with those that the list names; with --named no others run. Before its first use a
test must pass with no bug switched on. A bug that `needs` an instruction set is left out on other processors. A bug is killed by a test that fails, crashes or
times out. It survives if all tests pass or none executes it. Exit code 1 if a bug survives or no longer fits the sources.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build/mutants"
BUILD = TREE / "build/release"
LIST = ROOT / "tools/mutants/mutants.toml"
DECLARATION = "namespace stepforge { bool mutant(const char* name); }\n"
DEFINITION = """#include <cstdlib>
#include <cstring>
#include <fstream>

namespace stepforge {

/// Whether the planted bug of this name is switched on. Records in a file that its code was executed.
bool mutant(const char* name) {
  static const char* const wanted = std::getenv("STEPFORGE_MUTANT");
  if (wanted == nullptr || std::strcmp(wanted, name) != 0) return false;
  static const bool noted = [] {
    const char* note = std::getenv("STEPFORGE_MUTANT_REACHED");
    if (note != nullptr) std::ofstream(note) << "reached";
    return true;
  }();
  return noted;
}

}  // namespace stepforge
"""


def read_list():
    with open(LIST, "rb") as file:
        listed = tomllib.load(file)
    mutants, names = listed["mutant"], [mutant["name"] for mutant in listed["mutant"]]
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        sys.exit(f"{LIST}: more than one mutant has the name {', '.join(sorted(duplicates))}")
    return listed["tests"], mutants


def runs_here(mutant):
    if "needs" not in mutant:
        return True
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return flags is not None and mutant["needs"] in flags[1].split()


def tracked_files():
    """All files that the build needs, including new ones."""
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return {name for name in names if name and (ROOT / name).is_file()}


def plant(mutants):
    """The texts of all changed files by name. Exits with a list of the mutants that do not fit the sources."""
    texts, misfits = {}, []
    for mutant in mutants:
        name = "stepforge/" + mutant["file"]
        path = ROOT / name
        text = texts.get(name) or (path.read_text() if path.is_file() else "")
        count = text.count(mutant["find"])
        if count != 1 or "MUTANT" not in mutant["replace"]:
            misfits.append(f"{mutant['name']}: its text occurs {count} times in {name}")
            continue
        texts[name] = text.replace(mutant["find"], mutant["replace"].replace("MUTANT", f'mutant("{mutant["name"]}")'))
    if misfits:
        sys.exit("these mutants no longer fit the sources; update them in tools/mutants/mutants.toml:\n  " + "\n  ".join(misfits))
    for name, text in texts.items():
        once = "#pragma once\n"
        texts[name] = text.replace(once, once + DECLARATION, 1) if once in text else DECLARATION + text
    return {**texts, "stepforge/base/mutant.cpp": DEFINITION}


def write_tree(planted):
    """Writes the copy of the sources. Unchanged files keep their modification times, so that little is rebuilt."""
    names = tracked_files() | set(planted)
    for old in [path for path in TREE.rglob("*") if path.is_file() and not path.is_relative_to(TREE / "build")]:
        if str(old.relative_to(TREE)) not in names:
            old.unlink()
    for name in sorted(names):
        wanted = planted[name].encode() if name in planted else (ROOT / name).read_bytes()
        path = TREE / name
        if not path.is_file() or path.read_bytes() != wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wanted)
            shutil.copymode(ROOT / name, path) if name not in planted else None


def build(tests, jobs):
    environment = {**os.environ, "CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}
    torch = os.environ.get("STEPFORGE_TORCH")
    arguments = [f"-DSTEPFORGE_TORCH={torch}"] if torch else []
    subprocess.run(["cmake", "--preset", "release", *arguments], cwd=TREE, check=True, env=environment, stdout=subprocess.DEVNULL)
    targets = sorted({test["program"] for test in tests.values()})
    subprocess.run(["ninja", "-C", BUILD, f"-j{jobs}", *targets], check=True, env=environment)


def run_test(test, mutant, note):
    """(result, first failed test), or (None, None) if all tests pass."""
    command = [BUILD / test["program"], f"--gtest_filter={test['filter']}", "--gtest_fail_fast", "--gtest_brief=1"]
    environment = {**os.environ, "STEPFORGE_MUTANT": mutant, "STEPFORGE_MUTANT_REACHED": str(note), "OMP_WAIT_POLICY": "passive"}  # fmt: skip
    environment.pop("STEPFORGE_LONG_TESTS", None)
    process = subprocess.Popen(command, cwd=TREE, env=environment, text=True, errors="replace", start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        output, _ = process.communicate(timeout=test.get("seconds", 120))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return "hung", test["filter"]
    if "] 0 tests from" in output:
        return "no test", test["filter"]
    if process.returncode == 0:
        return None, None
    failed = re.findall(r"^\[  FAILED  \] ([^ ,]+)", output, re.MULTILINE)
    return ("failed", failed[0]) if process.returncode == 1 and failed else ("crashed", test["filter"])


def require_pass(name, test, passed):
    """Exits unless the test passes with no bug switched on. `passed`: the names of those that did."""
    if name in passed:
        return
    result, killer = run_test(test, "", TREE / "build/reached")
    if result:
        sys.exit(f"without any mutant: {killer} {result} ({name})")
    passed.add(name)


def run_mutant(mutant, tests, named, passed):
    """(result, killing test, seconds) of a mutant."""
    note = TREE / "build/reached"
    note.unlink(missing_ok=True)
    first = mutant.get("tests", [])
    began = time.monotonic()
    others = [] if named and first else [name for name in tests if name not in first]
    for name in [*first, *others]:
        require_pass(name, tests[name], passed)
        result, killer = run_test(tests[name], mutant["name"], note)
        if result:
            return result, killer, time.monotonic() - began
    return ("survived" if note.exists() else "not reached"), "", time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of mutants")
    parser.add_argument("--named", action="store_true", help="run only the tests that the list names for a mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants if all fit the sources, run nothing")
    options = parser.parse_args()
    tests, mutants = read_list()
    planted = plant(mutants)
    if options.list:
        for mutant in mutants:
            print(f"{mutant['name']:34} {mutant['what']}")
        return
    unknown = set(options.only or []) - {mutant["name"] for mutant in mutants}
    if unknown:
        sys.exit(f"unknown mutants: {', '.join(sorted(unknown))}")
    write_tree(planted)
    build(tests, options.jobs)
    survivors = []
    passed = set()
    chosen = [mutant for mutant in mutants if not options.only or mutant["name"] in options.only]
    for mutant in [mutant for mutant in chosen if not runs_here(mutant)]:
        print(f"left out: {mutant['name']} needs a processor with {mutant['needs']}")
        chosen.remove(mutant)
    for mutant in chosen:
        result, killer, seconds = run_mutant(mutant, tests, options.named, passed)
        print(f"{result:12} {mutant['name']:34} {seconds:6.1f} s  {killer}", flush=True)
        if not killer:
            survivors.append(mutant)
    for mutant in survivors:
        print(f"survived: {mutant['name']}: {mutant['what']} ({mutant['file']})")
    killed = len(chosen) - len(survivors)
    print(f"mutation score: {killed} of {len(chosen)} killed, {100 * killed / len(chosen):.0f} %")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
