#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Takes about half an hour on an otherwise idle machine, and 5 GB of disk (tools/oracle/environment.sh). Measures
# - the fused kernels against libtorch's, and products of experts against dense ones
# - speed, memory and time to the first step against PyTorch eager, torch.compile and transformers on the same work, of models with
#   experts against transformers
# - two and four ranks against FSDP2, tensor and context parallelism, pipelines, and a plain loop with spread experts
# - the overlap of communication with compute
# - predicted step times and memory of pipelines against measured ones
# - sums and gathers over Gloo against PyTorch's
#
#   tools/bench/bench.sh [ROUNDS]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
scripts/setup.sh
scripts/build.sh
cmake --build --preset release --target bench_collectives bench_experts bench_kernels bench_overlap
python=$(tools/oracle/environment.sh)
build/release/bench_kernels
build/release/bench_experts
python3 -B tools/bench/compare.py --program "$program" --python "$python" --rounds "${1:-3}"
python3 -B tools/bench/ranks.py --program "$program" --python "$python" --rounds "${1:-3}"
python3 -B tools/bench/foresight.py --program "$program" --rounds "${1:-3}"
build/release/bench_overlap tools/bench/overlap.toml
python3 -B tools/bench/collectives.py --program build/release/bench_collectives --python "$python" --rounds "${1:-3}"
