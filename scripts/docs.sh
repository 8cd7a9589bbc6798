#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes docs/configuration.md from the program's own schema.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/build.sh
configuration_page >docs/configuration.md.new
mv docs/configuration.md.new docs/configuration.md
say "Wrote docs/configuration.md"
