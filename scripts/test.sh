#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tests and runs them: those of torch-free rooms compiled with clang, under the address sanitizer; the others in the
# release build.
#
#   scripts/test.sh          tests with the label `fast`: at most ten minutes on two cores when ccache is warm
#   scripts/test.sh --all    long tests too; torch-free rooms also in the release build and under the thread sanitizer
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/setup.sh build clang

# One more than there are cores: a test of several ranks often waits.
test_preset() { ctest --preset "$1" --parallel $(($(nproc) + 1)) --no-tests=error "${@:2}"; }

stage "Tests of the tools" python3 -B -m unittest discover -q -s tests/tools -p '*_test.py'
if [ "${1:-}" = --all ]; then
  export STEPFORGE_LONG_TESTS=1
  for preset in asan tsan release; do
    stage "Build $preset" build_preset "$preset"
    stage "Tests $preset" test_preset "$preset"
  done
else
  stage "Build asan" build_preset asan --target torch_free_tests
  stage "Tests asan" test_preset asan --label-regex fast
  stage "Build release" build_preset release --target stepforge torch_tests
  stage "Tests release" test_preset release --label-regex fast --label-exclude torch-free
fi
