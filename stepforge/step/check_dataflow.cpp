// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// The operations of one block on one micro-batch.
struct Computed {
  int forward = kNever;
  int graph = kNever;     // forward or recompute
  int backward = kNever;  // backward or backward_input
  int backward_weight = kNever;
  int loss = kNever;
  bool weight_queued = false;
};

/// The operations that made one value of one micro-batch, or received it.
struct Made {
  int value = kNever;
  int gradient = kNever;
};

class Dataflow : RuleWalk {
 public:
  explicit Dataflow(const CheckedProgram& checked)
      : RuleWalk(checked),
        computed_(program_.blocks.size() * micro_batches()),
        made_(program_.values.size() * micro_batches()),
        batches_(micro_batches(), kNever) {}

  std::vector<Use> check() {
    walk([this](const Operation& operation) { visit(operation); });
    check_end();
    return std::move(uses_);
  }

 private:
  std::size_t micro_batches() const { return static_cast<std::size_t>(program_.micro_batches); }

  Computed& computed(int block, int micro_batch) {
    return computed_[static_cast<std::size_t>(block) * micro_batches() +
                     static_cast<std::size_t>(micro_batch)];
  }
  Computed& computed(const Operation& operation) { return computed(operation.block, operation.micro_batch); }

  Made& made(int value, const Operation& operation) {
    return made_[static_cast<std::size_t>(value) * micro_batches() +
                 static_cast<std::size_t>(operation.micro_batch)];
  }

  void use(int producer, BufferKind kind, std::string_view missing) {
    require_done(producer, missing);
    uses_.push_back({producer, here(), kind});
  }

  /// The input of the block on this micro-batch must exist: the batch, or a value that was computed or received.
  void use_input(const Operation& operation) {
    if (block(operation).first() || block(operation).last())
      use(element(batches_, operation.micro_batch), BufferKind::batch, "its micro-batch has not been loaded");
    if (block(operation).first()) return;
    const int value = block(operation).input;
    use(value < 0 ? kNever : made(value, operation).value, BufferKind::bundle,
        "its input is missing: neither computed by the block below nor received");
  }

  void use_output_gradient(const Operation& operation) {
    const int value = block(operation).output;
    use(value < 0 ? kNever : made(value, operation).gradient, BufferKind::bundle_gradient,
        "the gradient of its output is missing: neither computed by the block above nor received");
  }

  void make_input_gradient(const Operation& operation) {
    if (block(operation).input >= 0) made(block(operation).input, operation).gradient = here();
  }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::load_batch:
        return once(element(batches_, operation.micro_batch), "this micro-batch was already loaded");
      case OpKind::forward:
        return forward(operation);
      case OpKind::recompute:
        return recompute(operation);
      case OpKind::loss:
      case OpKind::logits:
        return loss(operation);
      case OpKind::loss_forward_backward:
        loss(operation);
        return make_input_gradient(operation);
      case OpKind::backward:
      case OpKind::backward_input:
        return backward(operation);
      case OpKind::backward_weight:
        return backward_weight(operation);
      case OpKind::receive:
        return once(carried(operation, block(operation).input).value, "this input was already received");
      case OpKind::receive_gradient:
        return once(carried(operation, block(operation).output).gradient,
                    "this gradient was already received");
      case OpKind::send:
        return use(carried(operation, block(operation).output).value, BufferKind::bundle,
                   "the bundle it sends has not been computed");
      case OpKind::send_gradient:
        return use(carried(operation, block(operation).input).gradient, BufferKind::bundle_gradient,
                   "the gradient it sends has not been computed");
      default:
        return;
    }
  }

  /// What a message carries: its other end must be on another rank.
  Made& carried(const Operation& operation, int value) {
    if (value < 0) fail("its block has no such value");
    const ProgramValue& edge = element(program_.values, value);
    const int other_end = edge.producer == operation.block ? edge.consumer : edge.producer;
    if (other_end >= 0) {
      fail(format("block {} of this rank is at the other end of the value it carries",
                  element(program_.blocks, other_end).name));
    }
    return made(value, operation);
  }

  void forward(const Operation& operation) {
    if (block(operation).last()) fail("the head must run as loss, loss_forward_backward or logits");
    use_input(operation);
    Computed& at = computed(operation);
    once(at.forward, "this forward was already done");
    made(block(operation).output, operation).value = here();
    if (operation.keep_graph) {
      if (!trains())
        fail(format("no backward uses its graph in a program of kind {}", program_kind_name(program_.kind)));
      at.graph = here();
    }
  }

  void recompute(const Operation& operation) {
    Computed& at = computed(operation);
    require_done(at.forward, "its forward has not run");
    once(at.graph, "its graph was already made");
    use_input(operation);
  }

  void loss(const Operation& operation) {
    if (!block(operation).last()) fail("only the head computes a loss or logits");
    use_input(operation);
    once(computed(operation).loss, "the head on this micro-batch was already done");
  }

  void backward(const Operation& operation) {
    Computed& at = computed(operation);
    once(at.backward, "this backward was already done");
    use(at.graph, BufferKind::graph,
        at.forward == kNever ? "its forward has not run"
                             : "its graph is missing: forward kept none and nothing recomputed it");
    use(at.graph, BufferKind::weight_inputs, "its graph is missing");
    use_output_gradient(operation);
    use_input(operation);
    make_input_gradient(operation);
    at.weight_queued = operation.kind == OpKind::backward_input;
  }

  void backward_weight(const Operation& operation) {
    Computed& at = computed(operation);
    if (!at.weight_queued && at.backward_weight == kNever) fail("no backward_input has queued it");
    once(at.backward_weight, "this weight gradient was already done");
    use(at.graph, BufferKind::weight_inputs, "its graph is missing");
    use(at.backward, BufferKind::weight_queue, "its queue is missing");
    at.weight_queued = false;
  }

  /// Every block has run on every micro-batch, and no graph or queued weight gradient is left over.
  void check_end() {
    for (int b = 0; b < std::ssize(program_.blocks); ++b) {
      for (int m = 0; m < program_.micro_batches; ++m) {
        const Computed& at = computed(b, m);
        const ProgramBlock& block = element(program_.blocks, b);
        if ((block.last() ? at.loss : at.forward) == kNever)
          fail(format("block {} never runs on micro-batch {}", block.name, m));
        if (at.graph != kNever && at.backward == kNever) fail_at(at.graph, "no backward uses its graph");
        if (at.weight_queued) fail_at(at.backward, "the weight gradient it queued is never computed");
      }
    }
  }

  std::vector<Computed> computed_;
  std::vector<Made> made_;
  std::vector<int> batches_;
  std::vector<Use> uses_;
};

}  // namespace

std::vector<Use> check_dataflow(const CheckedProgram& checked) {
  return Dataflow(checked).check();
}

}  // namespace stepforge
