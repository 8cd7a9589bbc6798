// SPDX-License-Identifier: Apache-2.0
// A training job in memory: configuration, step program, storage, optimizer, and steps on made-up rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include "stepforge/config/load.h"
#include "stepforge/data/tokens_ahead.h"
#include "stepforge/optim/param_groups.h"
#include "stepforge/plan/job_batch.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/train/train_step.h"
#include "tests/nn/tiny_model.h"

namespace stepforge::testing {

/// 8 rows of 32 tokens a step on the tiny model, fp32, no clipping.
inline Config tiny_job(const std::string& family = "llama", bool tied = false) {
  Config config;
  config.model = tiny_config(family, tied);
  config.training.seq_len = 32;
  config.training.local_batch_size = 8;
  config.training.global_batch_size = 8;
  config.training.max_norm = 0.0;
  config.optimizer.lr = 1e-2;
  return config;
}

class Job {
 public:
  explicit Job(const Config& job_config, uint64_t seed = 7)
      : config(job_config),
        spec(plan_model(config)),
        program(plan_train_step(plan_job(config))),
        store(spec.units, rank_layout(spec.units, {.gather = config.precision.compute})),
        model(make_model(spec, store.lookup(),
                         {.context_length = config.model.max_position,
                          .loss = {.z_weight = config.training.z_loss_weight}})),
        optimizer(store, resolve_param_groups(config.optimizer, spec)),
        executor(program, model, store),
        train_step(config, executor, store, optimizer) {
    store.initialize(seed);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Splits rows into this job's micro-batches.
  std::vector<Batch> split(const std::vector<Row>& rows, uint64_t first_row = 0) const {
    const BatchLayout plan = plan_batch(config);
    std::vector<Batch> batches;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i % static_cast<size_t>(plan.rows_per_micro_batch) == 0) {
        batches.push_back(empty_batch(plan.seq_len, plan.rows_per_micro_batch));
      }
      append_row(rows[i], first_row + i, batches.back());
    }
    for (Batch& batch : batches) add_tokens_ahead(batch, spec.ahead);
    return batches;
  }

  std::vector<Row> made_up_rows(uint64_t first_row = 0) const {
    std::vector<Row> rows;
    for (int64_t r = 0; r < plan_batch(config).rows_per_step; ++r) {
      rows.push_back(
          made_up_row(first_row + static_cast<uint64_t>(r), config.training.seq_len, spec.vocab_size));
    }
    return rows;
  }

  /// One step; by default with learning-rate factor 0. The gradients stay in the store.
  StepResult step(const std::vector<Batch>& batches, int64_t number = 0, double lr_factor = 0.0) {
    return train_step.run(batches, {number, lr_factor});
  }

  /// All gradients of the model, concatenated.
  at::Tensor gradients() const {
    std::vector<at::Tensor> all;
    for (size_t u = 0; u < store.size(); ++u)
      if (store.unit(u).trained()) all.push_back(store.unit(u).gradient().clone());
    return at::cat(all);
  }
  at::Tensor masters() const {
    std::vector<at::Tensor> all;
    for (size_t u = 0; u < store.size(); ++u) all.push_back(store.unit(u).master().clone());
    return at::cat(all);
  }

  Config config;
  ModelSpec spec;
  StepProgram program;
  ModelStore store;
  Model model;
  Optimizer optimizer;
  Executor executor;
  TrainStep train_step;
};

}  // namespace stepforge::testing
