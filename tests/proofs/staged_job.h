// SPDX-License-Identifier: Apache-2.0
// Pipelines of an ordinary model of six layers.
#pragma once

#include "tests/proofs/odd_job.h"
#include "tests/proofs/pipeline_choices.h"

namespace stepforge::testing {

/// `rows` micro-batches of one row, on one rank.
inline Strings staged_job(const std::filesystem::path& run_dir, const std::string& family, int rows) {
  return odd_job(
      run_dir, family, 4,
      {"model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=6", "model.n_layers=6",
       "model.tie_embeddings=false", "model.dropout=0.1", format("training.global_batch_size={}", rows)});
}

inline Strings pipeline_of(const PipelineCase& pipeline) {
  return overrides_of(pipeline) +
         Strings{"model.n_layers=6",
                 format("parallelism.pipeline_parallel_layers_per_stage={}", 8 / pipeline.stages())};
}

}  // namespace stepforge::testing
