// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/torch/loss_gradients.h"

#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "stepforge/app/torch/token_rows.h"
#include "stepforge/checkpoint/shard_slices.h"
#include "stepforge/data/tokens_ahead.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/train/training_services.h"

namespace stepforge {

namespace {

/// One step over `rows` rows. What the run does besides its loss, such as recomputation, does not matter here.
Config step_config(Config config, int64_t rows) {
  TrainingConfig training;
  training.seq_len = config.training.seq_len;
  training.threads = config.training.threads;
  training.local_batch_size = 1;
  training.global_batch_size = rows;
  config.training = training;
  config.optimizer = {};
  config.activation_checkpoint = {};
  return config;
}

at::Tensor gradient_of(const NamedTensor& tensor, const UnitStore& unit) {
  at::Tensor whole = at::empty(tensor.shape, unit.gradient().options());
  for (const ShardSlice& part : shard_slices(unit, tensor))
    part_of(whole, part.slice).copy_(part_of(unit.gradient(), part));
  return whole;
}

}  // namespace

void write_gradients(const std::filesystem::path& output, Config config, LoadedModel& model,
                     const Batch& batch) {
  config = step_config(std::move(config), batch.rows);
  const StepProgram program = plan_train_step(plan_job(config, {}, model.spec, model.spec));
  Model forward = model.forward(batch.seq_len);
  Executor executor(program, forward, *model.store);
  std::vector<Batch> rows;
  for (int64_t row = 0; row < batch.rows; ++row) rows.push_back(one_row(batch, row));
  for (Batch& row : rows) add_tokens_ahead(row, model.spec.ahead);
  const StepScalars scalars = step_scalars(program, *model.store);
  TrainingServices services(config.training, rows, *model.store, /*optimizer=*/nullptr, scalars);
  StepInputs inputs;
  inputs.name = "the gradients";
  executor.run(inputs, services);

  std::vector<NamedTensor> tensors = named_tensors(*model.store);
  // State of blocks has none.
  std::erase_if(tensors,
                [&](const NamedTensor& tensor) { return !model.store->unit(tensor.unit).trained(); });
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : tensors) specs.push_back({tensor.name, DType::f32, tensor.shape});
  SafetensorsWriter writer(output, specs);
  for (const NamedTensor& tensor : tensors)
    writer.write(tensor.name, bytes_of(gradient_of(tensor, model.store->unit(tensor.unit)).cpu()));
  writer.finish();
}

}  // namespace stepforge
