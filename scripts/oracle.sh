#!/usr/bin/env bash
# Compares what the program computes with PyTorch, transformers and tokenizers. Needs about 5 GB once, see oracle_env.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/build.sh
python=$(scripts/oracle_env.sh)
# Nothing is fetched from a model hub.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d "${TMPDIR:-/tmp}/stepforge-oracle.XXXXXX")
trap 'rm -rf "$work"' EXIT

write_checkpoints() {
  "$program" train --preset debug run_dir="$work/run" training.steps=6 checkpoint.interval=3 metrics.log_freq=3
}

scripts/book.sh >"$work/book.txt"
stage "Models against transformers" "$python" tools/oracle/model_oracle.py "$program"
stage "Training against PyTorch" "$python" tools/oracle/train_oracle.py "$program"
stage "Training on several ranks against FSDP2" "$python" tools/oracle/fsdp_oracle.py "$program"
stage "Tokenizers against tokenizers" "$python" tools/oracle/tokenizer_oracle.py "$program" "$work/book.txt"
stage "A run with checkpoints" write_checkpoints
stage "Checkpoints against PyTorch's reader" "$python" tools/oracle/dcp_oracle.py "$work"/run/checkpoint/step-*
say "${green}Stepforge agrees with PyTorch, transformers and tokenizers.${plain}"
