#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the program, build/release/stepforge, and its libraries. Installs nothing: `make setup` does.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/setup.sh --check build
stage "Release build" build_preset release --target stepforge
say "The program is ${bold}$program${plain}"
