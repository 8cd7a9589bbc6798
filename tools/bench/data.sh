#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares tokenizing and preparing text with Hugging Face tokenizers, datasets.map and Megatron's way of preprocessing, on an otherwise
# idle machine with two cores: about ten minutes, and 5 GB of disk for the peers (tools/oracle/environment.sh).
#
#   tools/bench/data.sh [ROUNDS]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
scripts/setup.sh
scripts/build.sh
cmake --build --preset release --target bench_text
python3 -B tools/bench/data.py --program "$program" --parts build/release/bench_text --python "$(tools/oracle/environment.sh)" \
  --rounds "${1:-3}"
