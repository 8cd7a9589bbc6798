#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants bugs, one at a time, and prints how many the tests find (tools/mutants/mutants.py). Arguments are passed on.
#
#   tools/mutants/mutants.sh [--only NAME,NAME] [--list]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
scripts/setup.sh
export STEPFORGE_TORCH
STEPFORGE_TORCH=$(scripts/setup.sh --print)
exec python3 -B tools/mutants/mutants.py "$@"
