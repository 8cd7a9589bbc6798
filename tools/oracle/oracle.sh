#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the program's results with PyTorch, transformers and tokenizers. Needs about 5 GB once, see environment.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
scripts/setup.sh build demo
scripts/build.sh
python=$(tools/oracle/environment.sh)
# Nothing is fetched from a model hub.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d "${TMPDIR:-/tmp}/stepforge-oracle.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The same run on 1, 2 and 4 ranks, whose bits must be equal in ordered mode, and on 3 ranks; sizes that do not divide evenly.
write_checkpoints() {
  local odd=(model.dim=66 model.head_dim=10 model.ffn_dim=151 model.n_layers=3 training.seq_len=32)
  local steps=(training.local_batch_size=1 training.steps=4 checkpoint.interval=2 metrics.log_freq=4)
  for ranks in 1 2 4; do
    "$program" launch --log-dir "$work/logs" --nproc "$ranks" train --preset debug "${odd[@]}" "${steps[@]}" run_dir="$work/ranks-$ranks" \
      training.global_batch_size=8 training.reduction=ordered
  done
  "$program" launch --log-dir "$work/logs" --nproc 4 train --preset debug "${odd[@]}" "${steps[@]}" run_dir="$work/ranks-2x2" \
    training.global_batch_size=8 training.reduction=ordered parallelism.data_parallel_replicate_degree=2
  "$program" launch --log-dir "$work/logs" --nproc 4 train --preset debug "${odd[@]}" "${steps[@]}" run_dir="$work/ranks-tensor" \
    training.global_batch_size=8 parallelism.tensor_parallel_degree=2
  "$program" launch --log-dir "$work/logs" --nproc 3 train --preset debug "${odd[@]}" "${steps[@]}" run_dir="$work/ranks-3" training.global_batch_size=9
}

scripts/book.sh >"$work/book.txt"
stage "Models against transformers" "$python" tools/oracle/model_oracle.py "$program"
stage "Training against PyTorch" "$python" tools/oracle/train_oracle.py "$program"
stage "Multi-token prediction against transformers" "$python" tools/oracle/mtp_oracle.py "$program"
stage "Adapters against PEFT" "$python" tools/oracle/adapter_oracle.py "$program"
stage "Losses of pairs of answers against TRL" "$python" tools/oracle/preference_oracle.py "$program"
stage "Distillation against PyTorch" "$python" tools/oracle/distillation_oracle.py "$program"
stage "Training on several ranks against FSDP2" "$python" tools/oracle/fsdp_oracle.py "$program"
stage "Tensor parallelism against parallelize_module" "$python" tools/oracle/tensor_oracle.py "$program"
stage "Context parallelism against PyTorch's ring attention" "$python" tools/oracle/context_oracle.py "$program"
stage "Spread experts against plain PyTorch and transformers" "$python" tools/oracle/experts_oracle.py "$program"
ninja -C build/release schedule_dump >/dev/null
stage "Pipeline schedules against PyTorch's" "$python" tools/oracle/schedule_oracle.py build/release/schedule_dump
stage "Pipelines against torch.distributed.pipelining" "$python" tools/oracle/stages_oracle.py "$program"
stage "Models trained on 4 ranks against one rank and transformers" "$python" tools/oracle/export_oracle.py "$program"
stage "Tokenizers against tokenizers" "$python" tools/oracle/tokenizer_oracle.py "$program" "$work/book.txt"
stage "Components of tokenizers against tokenizers" "$python" tools/oracle/pipeline_oracle.py "$program" tests/golden/text/llama3_like/tokenizer.json
stage "Whole tokenizers against tokenizers" "$python" tools/oracle/kind_oracle.py "$program" --strings 5000000
stage "Training of tokenizers against tokenizers" "$python" tools/oracle/trainer_oracle.py "$program" "$work/book.txt"
stage "Conversations against transformers" "$python" tools/oracle/chat_mask_oracle.py "$program"
stage "Chat templates of TRL's families against transformers" "$python" tools/oracle/families_oracle.py "$program"
ninja -C build/release jinja_render >/dev/null
stage "Chat templates against Jinja2" "$python" tools/oracle/jinja_oracle.py build/release/jinja_render
stage "Chat templates of folders against transformers" "$python" tools/oracle/chat_oracle.py build/release/jinja_render \
  tests/golden/text/llama3_like/tokenizer.json
stage "A fine-tuned base model stops, against transformers" "$python" tools/oracle/finetune_oracle.py "$program"
stage "Checkpoints of 1 to 4 ranks" write_checkpoints
stage "Checkpoints against PyTorch's reader" "$python" tools/oracle/dcp_oracle.py "$work"/ranks-*/checkpoint/step-*
stage "One step saved by several layouts" "$python" tools/oracle/dcp_oracle.py --same \
  "$work"/ranks-{1,2,4,2x2}/checkpoint/step-4
say "${green}Stepforge agrees with PyTorch, transformers and tokenizers.${plain}"
