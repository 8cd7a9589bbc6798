// Runs a step program: the operations of the list in order, nothing else. Buffers of the program are the only
// places where a value lives between two operations, and they die where the program says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "nn/block.h"
#include "parallel/unit_store.h"
#include "step/program.h"

namespace stepforge {

/// What a program needs from outside: data, and what happens with the summed gradients. Called by the
/// executor at the operations of the same name.
class StepServices {
 public:
  virtual ~StepServices() = default;
  virtual BatchTensors load_batch(int micro_batch) = 0;
  /// Global norm of all gradients; returns false if the step must not update (the rest of its updates are
  /// passed over).
  virtual void gradient_norm() {}
  virtual bool check_finite() { return true; }
  virtual void update(int unit) {}
  /// After the loss of a micro-batch is known.
  virtual void loss_ready(int micro_batch, const BatchTensors& batch, const LossResult& result) {}
  virtual void logits_ready(const at::Tensor& logits) {}
};

/// Where a run of a program stands in the training: what random keys and scales depend on.
struct StepInputs {
  double loss_scale = 1.0;  ///< 1 / valid labels of the whole step
  double dropout = 0.0;     ///< 0 in evaluation
  DropoutKey dropout_key;   ///< of the step
  KvCache* cache = nullptr;
  bool with_logits = false;  ///< evaluation: keep the logits of all tokens in LossResult
  /// Looks at every block's outputs (and at the gradients it returns) as they appear: used to find the first
  /// non-finite value and to plant one in tests. Null in normal steps.
  std::function<void(const ProgramBlock& block, Bundle& bundle, bool is_gradient)> inspect;
};

class Executor {
 public:
  /// `program` must have passed the checker; model and store belong to the same specification as the program.
  /// All three must outlive the executor.
  Executor(const StepProgram& program, ModelForward& model, ModelStore& store);

  /// Runs the whole list. Throws what an operation throws, wrapped in an Error that names the operation; the
  /// buffers are then cleared, so the next run starts clean.
  void run(const StepInputs& inputs, StepServices& services);

  const StepProgram& program() const { return program_; }

 private:
  /// A live buffer's contents: one of these, by BufferKind.
  struct Value {
    std::optional<BatchTensors> batch;
    Bundle bundle;  ///< bundle: a block's detached outputs; bundle_gradient: their gradients; graph: its
                    ///< inputs as leaves
    torch::autograd::edge_list
        roots;        ///< graph: where the gradients of its outputs enter; keeps no output's bytes
    at::Tensor slot;  ///< gather_slot
  };

  void execute(const Operation& operation, const StepInputs& inputs, StepServices& services);
  void forward(const Operation& operation, const StepInputs& inputs);
  void backward(const Operation& operation, const StepInputs& inputs);
  void loss(const Operation& operation, const StepInputs& inputs, StepServices& services);
  void gather(const Operation& operation);

  Context context_for(const Operation& operation, const StepInputs& inputs);
  Block& block(const Operation& operation) { return *model_.blocks.at(static_cast<size_t>(operation.block)); }
  const ProgramBlock& program_block(const Operation& operation) const {
    return program_.blocks.at(static_cast<size_t>(operation.block));
  }
  /// The buffer of `kind` among those that the operation reads or allocates. Throws Error if there is none.
  int buffer_of(const Operation& operation, const std::vector<int>& list, BufferKind kind) const;
  bool has_buffer(const std::vector<int>& list, BufferKind kind) const;
  Value& read(const Operation& operation, BufferKind kind);
  Value& allocate(const Operation& operation, BufferKind kind);

  const StepProgram& program_;
  ModelForward& model_;
  ModelStore& store_;
  std::vector<Value> values_;
  bool updates_allowed_ = true;
};

}  // namespace stepforge
