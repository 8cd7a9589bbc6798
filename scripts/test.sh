#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tests and runs them: the torch-free rooms under the address sanitizer, then everything in the release build.
#
#   scripts/test.sh          tests with the label `fast`: at most ten minutes on two cores when ccache is warm
#   scripts/test.sh --all    long tests too; the torch-free rooms also under the thread sanitizer
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# One more at a time than there are cores: a test of several ranks often waits.
test_preset() { ctest --preset "$1" --parallel $(($(nproc) + 1)) --no-tests=error "${@:2}"; }

presets=(asan release)
only_fast=(--label-regex fast)
without_arrow=()
if [ "${1:-}" = --all ]; then
  export STEPFORGE_LONG_TESTS=1
  presets=(asan tsan release)
  only_fast=()
fi
scripts/setup.sh build clang
stage "Tests of the tools" python3 -B -m unittest discover -q -s tests/tools -p '*_test.py'
# test_program_exists PRESET NAME: whether the configured build has it.
test_program_exists() { grep -q "^build $2:" "build/$1/build.ninja"; }

for preset in "${presets[@]}"; do
  stage "Build $preset" build_preset "$preset"
  stage "Tests $preset" test_preset "$preset" "${only_fast[@]}"
  test_program_exists "$preset" test_arrow || without_arrow+=("$preset")
done
[ ${#without_arrow[@]} -eq 0 ] ||
  warn "the reader of Parquet and Arrow files is not built, and its tests were not run (${without_arrow[*]}): run \`make setup\` where pyarrow can be downloaded, or set STEPFORGE_ARROW"
