#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks and measures the GPU of this machine with what is built (`make build cuda`); begins no stage after 10 minutes; needs no network. The
# report is in build/gpu-check. Exit code: 0 if stages passed and none failed, 1 if one failed or none passed, 2 if the GPU
# cannot be used (without its plug-in), 3 if there is no driver of one.
#
#   scripts/gpu_check.sh [OPTION...]      options of `stepforge gpu-check`: --only kernels,rates
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ -x "$program" ] || die "$program is not built; run \`make build cuda\`"
exec "$program" gpu-check --out build/gpu-check --peer tools/bench/gpu_peer.py "$@"
