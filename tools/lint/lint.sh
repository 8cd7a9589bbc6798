#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks formatting, the rules of check_rooms.py, generated documents and clang-tidy. Changes nothing.
#
#   tools/lint/lint.sh          clang-tidy on torch-free and changed files
#   tools/lint/lint.sh --all    clang-tidy on every file
#   tools/lint/lint.sh --format formats all C++ files instead
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"

# Tracked and new files, without deleted ones.
cpp_files() {
  local file
  git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' | sort -zu |
    while IFS= read -r -d '' file; do if [ -f "$file" ]; then printf '%s\0' "$file"; fi; done
}

# The checks. `check || ...` below switches errexit off inside them, so each returns its result explicitly.
check_format() {
  cpp_files | xargs -0 -n 40 -P "$(nproc)" clang-format-19 --dry-run --Werror || { say "wrong formatting: run \`make format\`"; return 1; }
}

check_scripts() {
  local file
  for file in scripts/*.sh tools/*/*.sh .ci/run; do bash -n "$file" || return 1; done
  python3 -B - scripts tools tests <<'END'
import ast, pathlib, sys
for folder in sys.argv[1:]:
    for path in sorted(pathlib.Path(folder).rglob("*.py")):
        ast.parse(path.read_text(), str(path))
END
}

check_mutants() { python3 -B tools/mutants/mutants.py --list >/dev/null; }

check_rooms() { python3 -B tools/lint/check_rooms.py; }

# Compares the generated page with what the program prints, if the program is built.
check_docs() {
  if [ ! -x "$program" ]; then
    say "docs/configuration.md is not checked: $program is not built"
  elif ! configuration_page | cmp -s - docs/configuration.md; then
    say "docs/configuration.md is out of date: run \`make docs\`"
    return 1
  fi
}

tidy_args=("$@")
check_tidy() { python3 -B tools/lint/tidy.py "${tidy_args[@]}"; }

if [ "${1:-}" = --format ]; then
  scripts/setup.sh lint
  cpp_files | xargs -0 -n 40 -P "$(nproc)" clang-format-19 -i
  exit 0
fi
scripts/setup.sh build lint
configure lint
failed=()
for check in format scripts mutants rooms docs tidy; do
  "check_$check" || failed+=("$check")
done
if [ ${#failed[@]} -gt 0 ]; then die "lint: ${failed[*]}"; fi
