#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/release/libstepforge_cuda.so, the plug-in for GPUs, prints registers and spills of its kernels, and says whether it can
# be loaded here.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/setup.sh --check build
stage "Plug-in for GPUs" build_preset release --target stepforge stepforge_cuda
# Whether it can be loaded here, and the remedy.
{ "$program" doctor || true; } | sed -n '/^[a-zA-Z]* *gpu /{p;n;/ -> /p}'
say "Nothing of it has run on a GPU yet: docs/devices.md"
