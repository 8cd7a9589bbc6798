#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the reference of the installed headers to build/api/html.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/setup.sh api
rm -rf build/api
cmake -D source_dir=. -D CMAKE_INSTALL_PREFIX=build/api -P cmake/InstallHeaders.cmake >/dev/null
doxygen docs/Doxyfile
say "Wrote build/api/html/index.html"
