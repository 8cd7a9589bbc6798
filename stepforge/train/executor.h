// SPDX-License-Identifier: Apache-2.0
// Runs the operations of a step program, in the order of each lane, and nothing else. Between operations,
// values are kept only in the program's buffers, which are freed where the program says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/nn/block.h"
#include "stepforge/nn/distillation_step.h"
#include "stepforge/nn/gradient_queue.h"
#include "stepforge/nn/preference_step.h"
#include "stepforge/nn/router_step.h"
#include "stepforge/step/program.h"
#include "stepforge/step/simulate.h"
#include "stepforge/storage/token_dispatch.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/train/lanes.h"

namespace stepforge {

/// What a program needs from outside: data, and functions that use losses and reduced gradients. The executor
/// calls each function at the operation of the same name. No function takes or returns a number that depends
/// on the data: such numbers are scalars on the compute device (train/step_scalars.h). Four classes implement
/// it: TrainingServices (training_services.h), EvaluationServices (evaluation.cpp), TeacherServices (teacher_model.cpp) and
/// GenerationServices (generation.cpp).
class StepServices {
 public:
  virtual ~StepServices() = default;
  /// Sums the valid labels, and the requests to stop, over `ranks`.
  virtual void count_labels(Communicator& ranks) {}
  /// `ahead`, here and below: for the blocks of this ProgramBlock::ahead. The labels are those of later tokens.
  virtual BatchTensors load_batch(int micro_batch, int ahead) = 0;
  /// What the routers of the model exchange with a step, if they have losses or their tokens are counted.
  virtual std::optional<RouterStep> router_step(const BatchTensors& batch, int ahead) { return {}; }
  /// The loss of pairs of answers, if the step trains on them.
  virtual std::optional<PreferenceStep> preference_step(int micro_batch, const BatchTensors& batch) {
    return {};
  }
  /// What a teacher predicts, if the step learns from one.
  virtual std::optional<DistillationStep> distillation_step(int micro_batch, const BatchTensors& batch) {
    return {};
  }
  /// The factor of each token's loss, a scalar (kernels/scalars.h): 1 / valid labels of the whole step.
  virtual at::Tensor loss_scale(int ahead) { return {}; }
  /// Gives the losses of the last stage to all stages of the pipeline.
  virtual void share_loss(Communicator& stages) {}
  /// Sums the losses of the step over `ranks`.
  virtual void reduce_loss(Communicator& ranks) {}
  /// The norm of all gradients. `shards`: the ranks that hold other parts of them; null if there are none.
  virtual void gradient_norm(Communicator* shards) {}
  /// Joins the norms of the ranks that hold other parts of divided tensors.
  virtual void join_norm(Communicator& parts) {}
  /// Joins the norms of the units of all stages.
  virtual void join_stage_norms(Communicator& stages) {}
  /// Lowers the flag of the updates if the loss or the norm is not finite.
  virtual void check_finite() {}
  /// Called for every unit in every step; changes nothing if the flag is down.
  virtual void update(int unit) {}
  /// Changes a unit that is state of a block by the tally of the step, summed over `ranks`; null: there is one rank.
  virtual void update_state(int unit, Communicator* ranks) {}
  /// The optimizer's state of an offloaded unit, [bytes / 4] fp32 on the device: from the host, and back.
  virtual void reload_optimizer(int unit, const at::Tensor& buffer) {}
  virtual void offload_optimizer(int unit) {}
  /// Called when the loss of a micro-batch is known.
  virtual void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& result) {}
  /// Called after that when the loss of another head is known, which counts `weight` times.
  virtual void extra_loss_ready(int micro_batch, double weight, const BatchTensors& batch,
                                const LossResult& result) {}
  /// Called when the loss of a head that predicts later tokens is known.
  virtual void ahead_loss_ready(int ahead, const BatchTensors& batch, const LossResult& result) {}
  /// Gives the logits of the last stage to all stages of the pipeline.
  virtual void share_logits(Communicator& stages) {}
  virtual void logits_ready(const at::Tensor& logits) {}
};

/// What one run of a program depends on besides its data.
struct StepInputs {
  std::string name;              ///< what runs, in messages: "step 3"
  double dropout = 0.0;          ///< 0 in evaluation
  double adapter_dropout = 0.0;  ///< likewise
  DropoutKey dropout_key;        ///< of the step
  KvCache* cache = nullptr;
  TopLogits top = {};        ///< evaluation: of each token with a label, in LossResult
  bool with_logits = false;  ///< evaluation: keep the logits of all tokens in LossResult
  /// Called with the outputs of every block and with the gradients of its inputs, to find the first
  /// non-finite value (and, in tests, to plant one). Null in normal steps.
  std::function<void(const ProgramBlock& block, Bundle& bundle, bool is_gradient)> inspect;
  /// Called on the operation's lane before it begins, and after it has ended and freed its buffers, before
  /// other lanes can continue. An exception fails the operation. For profilers and tests; null in normal
  /// steps.
  std::function<void(const Operation& operation, bool ended)> watch;
};

class Executor {
 public:
  /// `program` must have passed the checker. All three must outlive the executor. Throws Error if units,
  /// layouts or groups of the store, or the blocks of the model, are not those of the program (train/bind.h).
  Executor(const StepProgram& program, Model& model, ModelStore& store);

  /// Runs the whole list. If an operation throws, throws an Error that names what runs and the operation; the
  /// groups of the store are then aborted, so that other ranks do not wait, and the buffers are cleared.
  void run(const StepInputs& inputs, StepServices& services);

  const StepProgram& program() const { return program_; }
  const ModelStore& store() const { return store_; }
  /// Start and end of each operation of the last run, in seconds since the run began.
  const std::vector<OperationTime>& times() const { return times_; }

 private:
  struct LoadedBatch {
    explicit LoadedBatch(BatchTensors loaded) : batch(std::move(loaded)) {}
    BatchTensors batch;
    std::optional<RouterStep> routers = {};
    std::optional<PreferenceStep> preferences = {};
    std::optional<DistillationStep> distillation = {};
  };

  /// A live buffer's contents: one of these, by BufferKind.
  struct Value {
    std::vector<LoadedBatch> batches;  ///< batch: by ProgramBlock::ahead
    /// graph
    BackwardPass backward;
    /// bundle, bundle_gradient, gather_slot, whole_gradient, gradient_level, or the state of an offloaded unit
    at::Tensor tensor;
    /// weight_queue
    GradientQueue queue;
    std::unique_ptr<TokenRoutes> routes;
  };

  void meter_waits() const;
  void drop_values();
  void execute(const Operation& operation, const StepInputs& inputs, StepServices& services);
  void load_batch(const Operation& operation, StepServices& services);
  void forward(const Operation& operation, const StepInputs& inputs);
  void backward(const Operation& operation, const StepInputs& inputs);
  /// The products that backward_input has queued.
  void backward_weight(const Operation& operation);
  void send(const Operation& operation, BufferKind kind, const std::vector<int>& values);
  void receive(const Operation& operation, BufferKind kind, const std::vector<int>& values);
  /// Rows of tokens to the ranks of their experts, results back, and their gradients.
  void dispatch(const Operation& operation);
  void combine(const Operation& operation);
  void send_result_gradients(const Operation& operation);
  void return_row_gradients(const Operation& operation);
  void loss(const Operation& operation, const StepInputs& inputs, StepServices& services);
  /// The values that the operation's block takes.
  Bundle read_inputs(const Operation& operation);
  /// Calls inspect() for the gradients of its inputs, and adds those that the program needs.
  void add_input_gradients(const Operation& operation, const StepInputs& inputs, Bundle gradients);
  /// Adds `gradients` to those of `values`. Gradients that the program does not need are dropped.
  void add_gradients(const Operation& operation, const std::vector<int>& values, Bundle gradients);
  const ProgramValue& program_value(int value) const {
    return program_.values.at(static_cast<size_t>(value));
  }
  /// Finishes the gradients of the units to which the operation has contributed.
  void finish_gradients(const Operation& operation);
  void gather(const Operation& operation);
  void start_gradient(const Operation& operation);
  void stash_gradient(const Operation& operation);
  void reduce(const Operation& operation);
  void reload(const Operation& operation, StepServices& services);
  void offload(const Operation& operation, StepServices& services);
  /// A flat tensor with the size and dtype of the buffer of `kind` that the operation allocates.
  at::Tensor allocate_flat(const Operation& operation, BufferKind kind);
  void free(const Operation& operation, int buffer);
  /// The communicator of the operation's group on its lane; null if it has no group.
  Communicator* communicator(const Operation& operation) const {
    return store_.groups().at(operation.group, operation.lane);
  }
  /// The number of the peer in the group of two that carries messages.
  int other_end(const Operation& operation) const { return operation.peer > program_.rank ? 1 : 0; }
  UnitStore& unit(const Operation& operation) { return store_.unit(static_cast<size_t>(operation.unit)); }

  Context context_for(const Operation& operation, const StepInputs& inputs);
  Block& block(const Operation& operation) {
    return *model_.blocks.at(modules_.at(static_cast<size_t>(operation.block)));
  }
  Head& head(const Operation& operation) {
    return *model_.heads.at(modules_.at(static_cast<size_t>(operation.block)));
  }
  const ProgramBlock& program_block(const Operation& operation) const {
    return program_.blocks.at(static_cast<size_t>(operation.block));
  }
  /// The value of the buffer of `kind` in `list`, and of this value of the program if one is given. Throws Error if
  /// there is none.
  Value& value_of(const Operation& operation, const std::vector<int>& list, BufferKind kind, int value);
  Value& read(const Operation& operation, BufferKind kind, int value = -1);
  Value& allocate(const Operation& operation, BufferKind kind, int value = -1);

  const StepProgram& program_;
  Model& model_;
  ModelStore& store_;
  std::vector<size_t> modules_;  // of each block: its index in Model::blocks or heads
  std::vector<Value> values_;
  std::vector<OperationTime> times_;
  Lanes lanes_;
};

}  // namespace stepforge
