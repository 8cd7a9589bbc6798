#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures on an otherwise idle machine with two cores; needs 5 GB of disk (tools/oracle/environment.sh). Parts, with what one round takes
# there, about:
#   kernels       1 min   the fused kernels against libtorch's and against what the processor does at most, products of experts
#   models       25 min   speed, memory and time to the first step against PyTorch eager, torch.compile and transformers, fp32 and bf16
#   lengths      15 min   rows of 256 to 8,192 tokens, one document or many; one round whatever ROUNDS is
#   ranks        18 min   two and four ranks against FSDP2, tensor and context parallelism, pipelines, and a plain loop with spread experts
#   foresight     3 min   predicted step times and memory of pipelines against measured ones
#   adapters     15 min   LoRA, QLoRA and DPO against peft: speed and memory; a step of 4B and 8B in NF4
#   overlap       2 min   the overlap of communication with compute
#   collectives   1 min   sums and gathers over Gloo against PyTorch's
#
#   tools/bench/bench.sh [ROUNDS [PART...]]      default: 3 rounds, all parts but lengths and adapters
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
rounds=${1:-3}
parts=("${@:2}")
if [ ${#parts[@]} -eq 0 ]; then parts=(kernels models ranks foresight overlap collectives); fi
for part in "${parts[@]}"; do
  case $part in
    kernels | models | lengths | ranks | foresight | adapters | overlap | collectives) ;;
    *) die "no part is called $part: tools/bench/bench.sh lists them" ;;
  esac
done
scripts/setup.sh
scripts/build.sh
cmake --build --preset release --target bench_collectives bench_experts bench_kernels bench_mkl bench_overlap bench_peak
python=$(tools/oracle/environment.sh)

kernels() {
  python3 -B tools/bench/roofline.py
  build/release/bench_experts
}
models() { python3 -B tools/bench/compare.py --program "$program" --python "$python" --rounds "$rounds"; }
lengths() { python3 -B tools/bench/lengths.py --program "$program" --python "$python"; }
ranks() { python3 -B tools/bench/ranks.py --program "$program" --python "$python" --rounds "$rounds"; }
foresight() { python3 -B tools/bench/foresight.py --program "$program" --rounds "$rounds"; }
adapters() { python3 -B tools/bench/adapters.py --program "$program" --python "$python" --rounds "$rounds"; }
overlap() { build/release/bench_overlap tools/bench/overlap.toml; }
collectives() {
  python3 -B tools/bench/collectives.py --program build/release/bench_collectives --python "$python" --rounds "$rounds"
}
for part in "${parts[@]}"; do stage "$part" "$part"; done
