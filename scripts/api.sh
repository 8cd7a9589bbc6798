#!/usr/bin/env bash
# Writes the reference of the installed headers to build/api/html.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/setup.sh api
mkdir -p build/api
doxygen docs/Doxyfile
say "Wrote build/api/html/index.html"
