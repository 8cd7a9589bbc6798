// SPDX-License-Identifier: Apache-2.0
// Jobs of the exact models of stepforge/prove.
#pragma once

#include "stepforge/prove/exact_model.h"
#include "tests/train/fixture.h"

namespace stepforge::testing {

inline constexpr int64_t kExactSeqLen = 7;

/// For the names of tests.
inline std::string_view exact_model_name(ExactModel model) {
  return model == ExactModel::plain ? "plain" : model == ExactModel::shared ? "shared" : "adapted";
}

inline void use_exact_model(TestRun& run, ExactModel model) {
  stepforge::use_exact_model(run.trainer(), model);
}

/// Ten steps of an exact model.
inline Strings exact_job(const std::filesystem::path& run_dir) {
  return trainer_run(run_dir) + Strings{format("training.seq_len={}", kExactSeqLen),
                                        "training.local_batch_size=1",
                                        format("training.global_batch_size={}", kExactRows),
                                        format("model.n_layers={}", kExactLayers),
                                        "training.steps=10",
                                        "model.dropout=0.5",
                                        "optimizer.lr=0.25",
                                        "lr_scheduler.warmup_steps=0",
                                        "lr_scheduler.min_lr_factor=1.0",
                                        "checkpoint.enable=false"};
}

}  // namespace stepforge::testing
