// SPDX-License-Identifier: Apache-2.0
// Configurations that are programs: nanoGPT's assignments, Megatron's arguments in a shell script.
#include <gtest/gtest.h>

#include "tests/config/converting.h"

namespace stepforge::testing {
namespace {

TEST(ConvertConfig, TranslatesAssignmentsOfNanoGpt) {
  const Config config = converted(R"(# a small model
import time
out_dir = 'out-shakespeare'
eval_interval = 250 # often
eval_iters = 200
wandb_log = False
wandb_run_name = 'ft-' + str(time.time())
dataset = 'shakespeare_char'
gradient_accumulation_steps = 5 * 8
batch_size = 64
block_size = 256
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2
learning_rate = 1e-3
max_iters = 5000
lr_decay_iters = 5000
min_lr = 1e-4
beta2 = 0.99
warmup_iters = 100
)",
                                  "train.py", "nanoGPT");
  EXPECT_EQ(config.run_dir, "out-shakespeare");
  EXPECT_EQ(config.training.global_batch_size, 64 * 40);
  EXPECT_EQ(config.training.seq_len, 256);
  EXPECT_EQ(config.training.steps, 5000);
  EXPECT_EQ(config.model.n_kv_heads, 6);
  EXPECT_EQ(config.model.ffn_dim, 1024);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 100);
  EXPECT_DOUBLE_EQ(config.lr_scheduler.min_lr_factor, 0.1);
  EXPECT_EQ(config.lr_scheduler.decay_type, "cosine");
  EXPECT_EQ(config.checkpoint.interval, 250);
  EXPECT_EQ(config.data.sources.at(0).path, "data/shakespeare_char/train.bin");
}

TEST(ConvertConfig, PythonProgramsAreRefusedWithTheWayOut) {
  for (const char* program : {"from xtuner.v1.train import TrainerConfig\ntrainer = TrainerConfig(lr=1)\n",
                              "def llama3_8b():\n    return Config()\n", "x = f(1)\n"}) {
    EXPECT_CONTAINS(message_of<FormatError>([&] { convert_config(program, "a.py"); }),
                    "Write its values as JSON and convert that");
  }
}

constexpr const char* kMegatronShell = R"(#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=2
NNODES=${SLURM_NNODES:-"2"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TOKENIZER=/models/tok
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length 256
    --num-layers 2
    --hidden-size 256
    --ffn-hidden-size 896
    --num-attention-heads 4
    --group-query-attention
    --num-query-groups 2
    --hidden-dropout 0.0
    --attention-dropout 0.0
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
)
TRAINING_ARGS="
    --micro-batch-size 1 \
    --global-batch-size 8 \
    --lr 1e-4 \
    --train-iters 70 \
    # --lr-warmup-iters 500
    --lr-decay-style cosine \
    --min-lr 1.0e-5 \
    --weight-decay 0.1 \
    --clip-grad 1.0 \
    --bf16
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING_ARGS \
    --data-path 0.3 a_text_document 0.7 b_text_document \
    --tokenizer-type HuggingFaceTokenizer \
    --tokenizer-model ${TOKENIZER} \
    --tensor-model-parallel-size 2 --sequence-parallel
)";

TEST(ConvertConfig, TranslatesTheArgumentsOfAMegatronScript) {
  EXPECT_EQ(lost(kMegatronShell, "train.sh"), Strings{});
  const Config config = converted(kMegatronShell, "train.sh", "Megatron-LM");
  EXPECT_EQ(config.model.dim, 256);
  EXPECT_EQ(config.model.n_kv_heads, 2);
  EXPECT_FALSE(config.model.tie_embeddings);
  EXPECT_EQ(config.training.seq_len, 256);
  EXPECT_EQ(config.training.steps, 70);
  EXPECT_EQ(config.training.local_batch_size, 1);
  EXPECT_EQ(config.training.global_batch_size, 8);
  EXPECT_EQ(config.training.seed, 1234) << "its default";
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.999) << "its default";
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_DOUBLE_EQ(config.lr_scheduler.min_lr_factor, 0.1);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, 0);
  EXPECT_EQ(config.precision.compute, DType::bf16);
  EXPECT_EQ(config.parallelism.tensor_parallel_degree, 2);
  EXPECT_TRUE(config.parallelism.enable_sequence_parallel);
  EXPECT_EQ(config.tokenizer.path, "/models/tok");
  EXPECT_EQ(config.data.split, "969,30,1");
  EXPECT_EQ(config.data.sources, (std::vector<DataSourceConfig>{{.path = "a_text_document", .weight = 0.3},
                                                                {.path = "b_text_document", .weight = 0.7}}));
}

TEST(ConvertConfig, TranslatesAMegatronYaml) {
  const std::string text = R"(
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --train-samples: 3200
  --lr: 0.00015
  --lr-decay-style: cosine
  --min-lr: 1.0e-5
  --lr-warmup-fraction: .01
  --clip-grad: 1.0
  --bf16: true
  --eval-iters: 0
  --mock-data: true
  --attention-dropout: 0.0
TEST_TYPE: regular
)";
  const Config config = converted(text, "model_config.yaml", "Megatron-LM");
  EXPECT_EQ(config.model.n_layers, 12);
  EXPECT_EQ(config.optimizer.lr, 0.00015);
  EXPECT_EQ(config.training.steps, 100);
  EXPECT_EQ(config.training.max_norm, 1.0);
  EXPECT_EQ(config.validation.freq, 0) << "no batch is validated";
  EXPECT_EQ(config.lr_scheduler.warmup_ratio, 0.01);
  EXPECT_EQ(config.data.sources.at(0).format, DataFormat::synthetic);
  EXPECT_CONTAINS(::testing::PrintToString(lost(text, "model_config.yaml")),
                  "a llama is trained, which is the file's model only with position_embedding_type rope");
}

}  // namespace
}  // namespace stepforge::testing
