#!/usr/bin/env bash
# Everything that must hold before a change is good: builds, lint, tests under the sanitizers, tests of the release build.
#
#   scripts/test.sh          at most ten minutes when nothing is cold
#   scripts/test.sh --all    the long tests too (STEPFORGE_LONG_TESTS=1), and clang-tidy on every file
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
lint_words=()
if [ "${1:-}" = --all ]; then
  export STEPFORGE_LONG_TESTS=1
  lint_words=(--all)
fi
scripts/build.sh everything
stage "Lint" tools/lint/lint.sh "${lint_words[@]}"
stage "Build under the sanitizers" build_preset asan
stage "Tests under the sanitizers" ctest --test-dir build/asan --output-on-failure -j "$(nproc)"
# The tests of the torch library use all cores themselves.
stage "Scripts' own tests" python3 -B -m unittest discover -q -s tests/tools -p '*_test.py'
say "Tests of the release build"
exec ctest --test-dir build/release --output-on-failure
