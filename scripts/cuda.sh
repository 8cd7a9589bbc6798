#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds build/release/libstepforge_cuda.so, the plug-in for GPUs, and prints registers and spills of its kernels.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/setup.sh --check build
stage "Plug-in for GPUs" build_preset release --target stepforge_cuda
say "Nothing of it has run on a GPU yet: docs/devices.md"
