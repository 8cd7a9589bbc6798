#!/usr/bin/env bash
# Set-up and the release build: build/release/stepforge and libstepforge_torch.so; with "everything" the tests too.
#
#   scripts/build.sh [everything]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
stage "Set-up" scripts/setup.sh
if [ "${1:-}" = everything ]; then
  stage "Release build with its tests" build_preset release
else
  stage "Release build" build_preset release --target stepforge
  say "The program is ${bold}$program${plain}"
fi
