// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/storage/queued_backward.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/train/bind.h"

namespace stepforge {

namespace {

/// The index of each block among those without outputs, or among those with some.
std::vector<size_t> module_indices(const std::vector<ProgramBlock>& blocks) {
  std::vector<size_t> indices;
  std::array<size_t, 2> counts = {};
  for (const ProgramBlock& block : blocks) indices.push_back(counts.at(block.last() ? 1 : 0)++);
  return indices;
}

/// Without the stack trace in libtorch's messages.
std::string reason(const std::exception& failure) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&failure);
  return from_torch != nullptr ? from_torch->what_without_backtrace() : failure.what();
}

}  // namespace

Executor::Executor(const StepProgram& program, Model& model, ModelStore& store)
    : program_(program),
      model_(model),
      store_(store),
      modules_(module_indices(program.blocks)),
      values_(program.buffers.size()),
      lanes_(program, &store) {
  check_binding(program, model, store);
}

Executor::Value& Executor::value_of(const Operation& operation, const std::vector<int>& list, BufferKind kind,
                                    int value) {
  const int buffer = find_buffer(program_, list, kind, value);
  if (buffer < 0) {
    throw Error(
        format("step program: {} names no {} buffer", op_name(operation.kind), buffer_kind_name(kind)));
  }
  return values_.at(static_cast<size_t>(buffer));
}

Executor::Value& Executor::read(const Operation& operation, BufferKind kind, int value) {
  return value_of(operation, operation.reads, kind, value);
}

Executor::Value& Executor::allocate(const Operation& operation, BufferKind kind, int value) {
  return value_of(operation, operation.allocates, kind, value);
}

void Executor::run(const StepInputs& inputs, StepServices& services) {
  times_.assign(program_.operations.size(), {});
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const auto run_one = [&](size_t index) {
    const Operation& operation = program_.operations[index];
    try {
      if (inputs.watch) inputs.watch(operation, /*ended=*/false);
      if (!store_.device().is_cpu()) store_.backend().mark(operation_text(program_, operation));
      times_[index].start = seconds();
      execute(operation, inputs, services);
      if (has_trait(operation.kind, kContributes)) finish_gradients(operation);
      for (const int buffer : operation.frees) free(operation, buffer);
      times_[index].end = seconds();
      if (inputs.watch) inputs.watch(operation, /*ended=*/true);
    } catch (const std::bad_alloc&) {
      throw OutOfMemory(format("{}, {}: out of memory", inputs.name, operation_text(program_, operation)));
    } catch (const PeerError& failure) {
      throw PeerError(format("{}, {}: {}", inputs.name, operation_text(program_, operation), failure.what()));
    } catch (const std::exception& failure) {
      throw Error(format("{}, {}: {}", inputs.name, operation_text(program_, operation), reason(failure)));
    }
  };
  try {
    lanes_.run(run_one, [this](const std::string& reason) { store_.groups().abort(reason); });
  } catch (...) {
    drop_values();
    throw;
  }
  store_.backend().mark("");
  meter_waits();
}

/// After a failure: what streams still use is freed when they have finished.
void Executor::drop_values() {
  store_.backend().mark("");
  try {
    wait_for_device(store_.device());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the failure that is on its way says more
  }
  std::vector<Value>(values_.size()).swap(values_);
}

/// The compute lane waits for collectives of other lanes, and for what these wait for: the time counts for their
/// groups.
void Executor::meter_waits() const {
  for (size_t i = 0; i < program_.operations.size(); ++i) {
    if (lanes_.waits()[i].count() == 0) continue;
    for (const int needed : program_.operations[i].needs) {
      const Operation& operation = program_.operations[static_cast<size_t>(needed)];
      if (operation.lane == Lane::compute || operation.group < 0) continue;
      store_.groups().meter(operation.group).add_wait(lanes_.waits()[i]);
      break;
    }
  }
}

Context Executor::context_for(const Operation& operation, const StepInputs& inputs) {
  Context context;
  const auto ahead = static_cast<size_t>(program_block(operation).ahead);
  LoadedBatch& loaded = read(operation, BufferKind::batch).batches.at(ahead);
  context.batch = &loaded.batch;
  if (loaded.routers) context.routers = &*loaded.routers;
  if (loaded.preferences) context.preferences = &*loaded.preferences;
  if (loaded.distillation) context.distillation = &*loaded.distillation;
  context.top = inputs.top;
  context.dropout = inputs.dropout;
  context.adapter_dropout = inputs.adapter_dropout;
  context.dropout_key = inputs.dropout_key;
  context.cache = inputs.cache;
  context.recomputed_regions = program_block(operation).recomputed_regions;
  return context;
}

void Executor::execute(const Operation& operation, const StepInputs& inputs, StepServices& services) {
  switch (operation.kind) {
    case OpKind::count_labels:
      return services.count_labels(*communicator(operation));
    case OpKind::load_batch:
      return load_batch(operation, services);
    case OpKind::forward:
    case OpKind::recompute:
      return forward(operation, inputs);
    case OpKind::backward:
    case OpKind::backward_input:
      return backward(operation, inputs);
    case OpKind::backward_weight:
      return backward_weight(operation);
    case OpKind::send:
      return send(operation, BufferKind::bundle, program_block(operation).leaving);
    case OpKind::send_gradient:
      return send(operation, BufferKind::bundle_gradient, program_block(operation).arriving);
    case OpKind::receive:
      return receive(operation, BufferKind::bundle, program_block(operation).arriving);
    case OpKind::receive_gradient:
      return receive(operation, BufferKind::bundle_gradient, program_block(operation).leaving);
    case OpKind::dispatch:
      return dispatch(operation);
    case OpKind::combine:
      return combine(operation);
    case OpKind::combine_gradient:
      return send_result_gradients(operation);
    case OpKind::dispatch_gradient:
      return return_row_gradients(operation);
    case OpKind::tie_reduce:
      return unit(operation).add_copies(*communicator(operation), unit(operation).gradient());
    case OpKind::tie_leaf:
      return unit(operation).add_copies(*communicator(operation), unit(operation).written_gradient());
    case OpKind::share_logits:
      return services.share_logits(*communicator(operation));
    case OpKind::share_loss:
      return services.share_loss(*communicator(operation));
    case OpKind::loss:
    case OpKind::loss_forward_backward:
    case OpKind::logits:
      return loss(operation, inputs, services);
    case OpKind::gather_start:
      return gather(operation);
    case OpKind::gather_wait:
    case OpKind::all_reduce_wait:
    case OpKind::reload_wait:
    case OpKind::offload_wait:
      return;  // the lane has already waited for what this operation needs
    case OpKind::release:
      return unit(operation).release();
    case OpKind::start_gradient:
      return start_gradient(operation);
    case OpKind::stash_gradient:
      return stash_gradient(operation);
    case OpKind::add_gradient:
      return unit(operation).add_gradient(read(operation, BufferKind::gradient_level).tensor);
    case OpKind::reduce_start:
      return reduce(operation);
    case OpKind::reduce_wait:
      return unit(operation).end_reduction();
    case OpKind::all_reduce_start:
      return unit(operation).all_reduce();
    case OpKind::reduce_loss:
      return services.reduce_loss(*communicator(operation));
    case OpKind::gradient_norm:
      return services.gradient_norm(communicator(operation));
    case OpKind::join_norm:
      return services.join_norm(*communicator(operation));
    case OpKind::join_stage_norms:
      return services.join_stage_norms(*communicator(operation));
    case OpKind::check_finite:
      return services.check_finite();
    case OpKind::reload_start:
      return reload(operation, services);
    case OpKind::offload_start:
      return offload(operation, services);
    case OpKind::update:
      return services.update(operation.unit);
    case OpKind::update_state:
      return services.update_state(operation.unit, communicator(operation));
    default:
      throw Error(format("the executor cannot run {} operations", op_name(operation.kind)));
  }
}

void Executor::load_batch(const Operation& operation, StepServices& services) {
  std::vector<LoadedBatch>& loaded = allocate(operation, BufferKind::batch).batches;
  loaded.reserve(static_cast<size_t>(program_.ahead) + 1);  // what a step has of a batch refers to it
  for (int ahead = 0; ahead <= program_.ahead; ++ahead) {
    LoadedBatch& added = loaded.emplace_back(services.load_batch(operation.micro_batch, ahead));
    added.routers = services.router_step(added.batch, ahead);
    if (ahead > 0) continue;
    added.preferences = services.preference_step(operation.micro_batch, added.batch);
    added.distillation = services.distillation_step(operation.micro_batch, added.batch);
  }
}

Bundle Executor::read_inputs(const Operation& operation) {
  Bundle inputs;
  for (const int value : program_block(operation).inputs)
    inputs.push_back(read(operation, BufferKind::bundle, value).tensor);
  return inputs;
}

void Executor::forward(const Operation& operation, const StepInputs& inputs) {
  const Context context = context_for(operation, inputs);
  const bool trains = operation.keep_graph || operation.kind == OpKind::recompute;
  ForwardPass pass = block(operation).forward(read_inputs(operation), context, trains);
  if (operation.kind == OpKind::forward) {
    if (inputs.inspect) inputs.inspect(program_block(operation), pass.outputs, /*is_gradient=*/false);
    const std::vector<int>& values = program_block(operation).outputs;
    for (size_t i = 0; i < values.size(); ++i)
      allocate(operation, BufferKind::bundle, values[i]).tensor = std::move(pass.outputs.at(i));
  }
  if (trains) allocate(operation, BufferKind::graph).backward = std::move(pass.backward);
}

void Executor::backward(const Operation& operation, const StepInputs& inputs) {
  Bundle gradients;
  for (const int value : program_block(operation).outputs) {
    gradients.emplace_back();
    if (program_value(value).has_gradient()) {
      gradients.back() = std::move(read(operation, BufferKind::bundle_gradient, value).tensor);
      use_on_current_stream(gradients.back());
    }
  }
  Bundle of_inputs;
  const auto run = [&] {
    const auto backward = std::move(read(operation, BufferKind::graph).backward);
    of_inputs = backward(gradients);
  };
  if (operation.kind == OpKind::backward_input) {
    queued_backward(store_, program_block(operation).units,
                    allocate(operation, BufferKind::weight_queue).queue, run);
  } else {
    run();
  }
  add_input_gradients(operation, inputs, std::move(of_inputs));
}

void Executor::add_input_gradients(const Operation& operation, const StepInputs& inputs, Bundle gradients) {
  const std::vector<int>& values = program_block(operation).inputs;
  const auto needed = [&](int value) {
    return find_buffer(program_, operation.allocates, BufferKind::bundle_gradient, value) >= 0 ||
           find_buffer(program_, operation.reads, BufferKind::bundle_gradient, value) >= 0;
  };
  if (inputs.inspect && std::ranges::any_of(values, needed))
    inputs.inspect(program_block(operation), gradients, /*is_gradient=*/true);
  add_gradients(operation, values, std::move(gradients));
}

void Executor::add_gradients(const Operation& operation, const std::vector<int>& values, Bundle gradients) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (find_buffer(program_, operation.allocates, BufferKind::bundle_gradient, values[i]) >= 0)
      allocate(operation, BufferKind::bundle_gradient, values[i]).tensor = std::move(gradients.at(i));
    else if (find_buffer(program_, operation.reads, BufferKind::bundle_gradient, values[i]) >= 0)
      read(operation, BufferKind::bundle_gradient, values[i]).tensor.add_(gradients.at(i));
  }
}

void Executor::backward_weight(const Operation& operation) {
  const at::NoGradGuard no_grad;
  read(operation, BufferKind::weight_queue).queue.run();
}

void Executor::loss(const Operation& operation, const StepInputs& inputs, StepServices& services) {
  const Context context = context_for(operation, inputs);
  const Bundle bundle = read_inputs(operation);
  if (operation.kind == OpKind::logits) {
    services.logits_ready(head(operation).last_logits(bundle, context));
    return;
  }
  const bool train = operation.kind == OpKind::loss_forward_backward;
  const double weight = program_block(operation).loss_weight;
  const int ahead = program_block(operation).ahead;
  LossResult result;
  if (train) {
    const at::Tensor scale = services.loss_scale(ahead);
    result = head(operation).loss_with_gradients(bundle, context, weight == 1 ? scale : scale * weight);
  } else {
    result = head(operation).loss(bundle, context, inputs.with_logits);
  }
  if (modules_.at(static_cast<size_t>(operation.block)) == 0)
    services.loss_ready(operation.micro_batch, *context.batch, result);
  else if (ahead > 0)
    services.ahead_loss_ready(ahead, *context.batch, result);
  else
    services.extra_loss_ready(operation.micro_batch, weight, *context.batch, result);
  if (train) add_input_gradients(operation, inputs, std::move(result.input_gradients));
}

void Executor::finish_gradients(const Operation& operation) {
  for (const int index : program_block(operation).units) {
    UnitStore& contributed = store_.unit(static_cast<size_t>(index));
    if (contributed.trained()) contributed.finish_gradient();
  }
}

void Executor::gather(const Operation& operation) {
  unit(operation).gather(allocate_flat(operation, BufferKind::gather_slot));
}

void Executor::start_gradient(const Operation& operation) {
  UnitStore& storage = unit(operation);
  if (storage.writes_in_place()) return storage.start_gradient();
  storage.start_gradient(allocate_flat(operation, BufferKind::whole_gradient));
}

void Executor::stash_gradient(const Operation& operation) {
  allocate(operation, BufferKind::gradient_level).tensor = unit(operation).take_gradient();
}

at::Tensor Executor::allocate_flat(const Operation& operation, BufferKind kind) {
  const Buffer& buffer =
      program_.buffers.at(static_cast<size_t>(find_buffer(program_, operation.allocates, kind)));
  return allocate(operation, kind).tensor =
             at::empty({buffer.bytes / dtype_bytes(buffer.dtype)},
                       at::device(store_.device()).dtype(scalar_type(buffer.dtype)));
}

void Executor::reduce(const Operation& operation) {
  UnitStore& storage = unit(operation);
  if (find_buffer(program_, operation.allocates, BufferKind::gradients) >= 0) {
    storage.set_working_gradient(allocate_flat(operation, BufferKind::gradients));
  }
  storage.reduce(operation.accumulate);
}

void Executor::reload(const Operation& operation, StepServices& services) {
  UnitStore& storage = unit(operation);
  if (operation.parts.weights) {
    storage.set_working_master(
        allocate_flat(operation, BufferKind::weights).copy_(storage.master(), /*non_blocking=*/true));
  }
  if (operation.parts.gradients) {
    storage.set_working_gradient(
        allocate_flat(operation, BufferKind::gradients).copy_(storage.gradient(), /*non_blocking=*/true));
  }
  if (operation.parts.optimizer) {
    services.reload_optimizer(operation.unit, allocate_flat(operation, BufferKind::optimizer));
  }
}

void Executor::offload(const Operation& operation, StepServices& services) {
  UnitStore& storage = unit(operation);
  if (operation.parts.weights) storage.master().copy_(storage.working_master(), /*non_blocking=*/true);
  if (operation.parts.gradients) storage.gradient().copy_(storage.working_gradient(), /*non_blocking=*/true);
  if (operation.parts.optimizer) services.offload_optimizer(operation.unit);
}

void Executor::free(const Operation& operation, int buffer) {
  switch (program_.buffers.at(static_cast<size_t>(buffer)).kind) {
    case BufferKind::weights:
      unit(operation).set_working_master({});
      break;
    case BufferKind::gradients:
      unit(operation).set_working_gradient({});
      break;
    default:
      break;
  }
  Value& value = values_.at(static_cast<size_t>(buffer));
  use_on_current_stream(value.tensor);
  value = Value();
}

}  // namespace stepforge
