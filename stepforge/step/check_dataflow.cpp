// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// The operations that produced the values of one block on one micro-batch.
struct Values {
  int input = kNever;            // receive
  int output = kNever;           // forward
  int graph = kNever;            // forward or recompute
  int output_gradient = kNever;  // receive
  int input_gradient = kNever;   // backward or loss_forward_backward
  int backward = kNever;
  int backward_weight = kNever;
  int loss = kNever;
  bool weight_queued = false;
};

class Dataflow : RuleWalk {
 public:
  explicit Dataflow(const CheckedProgram& checked)
      : RuleWalk(checked),
        values_(program_.blocks.size() * static_cast<std::size_t>(program_.micro_batches)),
        batches_(static_cast<std::size_t>(program_.micro_batches), kNever),
        receives_input_(program_.blocks.size(), false),
        receives_gradient_(program_.blocks.size(), false) {
    for (const Operation& operation : program_.operations) {
      if (operation.kind != OpKind::receive) continue;
      auto& receives = carries_gradient(operation) ? receives_gradient_ : receives_input_;
      element(receives, operation.block) = true;
    }
  }

  std::vector<Use> check() {
    walk([this](const Operation& operation) { visit(operation); });
    check_end();
    return std::move(uses_);
  }

 private:
  /// A message carries the buffer that it reads or allocates: a bundle, or the gradient of one.
  bool carries_gradient(const Operation& operation) const {
    const auto& buffers = operation.kind == OpKind::send ? operation.reads : operation.allocates;
    return find_buffer(program_, buffers, BufferKind::bundle_gradient) >= 0;
  }

  Values& values(int block, int micro_batch) {
    return values_[static_cast<std::size_t>(block) * static_cast<std::size_t>(program_.micro_batches) +
                   static_cast<std::size_t>(micro_batch)];
  }

  void use(int producer, BufferKind kind, std::string_view missing) {
    require_done(producer, missing);
    uses_.push_back({producer, here(), kind});
  }

  /// The input of the block on this micro-batch must exist: the batch, a received bundle, or the bundle of
  /// the block below.
  void use_input(const Operation& operation) {
    if (block(operation).first || block(operation).last)
      use(element(batches_, operation.micro_batch), BufferKind::batch, "its micro-batch has not been loaded");
    if (block(operation).first) return;
    int input = kNever;
    if (element(receives_input_, operation.block))
      input = values(operation.block, operation.micro_batch).input;
    else if (operation.block > 0)
      input = values(operation.block - 1, operation.micro_batch).output;
    use(input, BufferKind::bundle, "its input is missing: neither computed by the block below nor received");
  }

  void use_output_gradient(const Operation& operation) {
    int gradient = kNever;
    if (element(receives_gradient_, operation.block))
      gradient = values(operation.block, operation.micro_batch).output_gradient;
    else if (operation.block + 1 < std::ssize(program_.blocks))
      gradient = values(operation.block + 1, operation.micro_batch).input_gradient;
    use(gradient, BufferKind::bundle_gradient,
        "the gradient of its output is missing: neither computed by the block above nor received");
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
        values(operation.block, operation.micro_batch).input_gradient = here();
        return;
      case OpKind::backward:
      case OpKind::backward_input:
        return backward(operation);
      case OpKind::backward_weight:
        return backward_weight(operation);
      case OpKind::receive:
        return receive(operation);
      case OpKind::send:
        return send(operation);
      default:
        return;
    }
  }

  void forward(const Operation& operation) {
    if (block(operation).last) fail("the head must run as loss, loss_forward_backward or logits");
    use_input(operation);
    Values& at = values(operation.block, operation.micro_batch);
    once(at.output, "this forward was already done");
    if (operation.keep_graph) {
      if (!trains())
        fail(format("no backward uses its graph in a program of kind {}", program_kind_name(program_.kind)));
      at.graph = here();
    }
  }

  void recompute(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    require_done(at.output, "its forward has not run");
    once(at.graph, "its graph was already made");
    use_input(operation);
  }

  void loss(const Operation& operation) {
    if (!block(operation).last) fail("only the head computes a loss or logits");
    use_input(operation);
    once(values(operation.block, operation.micro_batch).loss,
         "the head on this micro-batch was already done");
  }

  void backward(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    once(at.backward, "this backward was already done");
    use(at.graph, BufferKind::graph,
        at.output == kNever ? "its forward has not run"
                            : "its graph is missing: forward kept none and nothing recomputed it");
    use_output_gradient(operation);
    use_input(operation);
    at.input_gradient = here();
    at.weight_queued = operation.kind == OpKind::backward_input;
  }

  void backward_weight(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    if (!at.weight_queued && at.backward_weight == kNever) fail("no backward_input has queued it");
    once(at.backward_weight, "this weight gradient was already done");
    use(at.graph, BufferKind::graph, "its graph is missing");
    require_order(at.backward);
    at.weight_queued = false;
  }

  void receive(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    if (carries_gradient(operation))
      once(at.output_gradient, "this gradient was already received");
    else
      once(at.input, "this input was already received");
  }

  void send(const Operation& operation) {
    const Values& at = values(operation.block, operation.micro_batch);
    const bool gradient = carries_gradient(operation);
    if (gradient)
      use(at.input_gradient, BufferKind::bundle_gradient, "the gradient it sends has not been computed");
    else
      use(at.output, BufferKind::bundle, "the bundle it sends has not been computed");
  }

  /// Every block has run on every micro-batch, and no graph or queued weight gradient is left over.
  void check_end() {
    for (int b = 0; b < std::ssize(program_.blocks); ++b) {
      for (int m = 0; m < program_.micro_batches; ++m) {
        const Values& at = values(b, m);
        const ProgramBlock& block = element(program_.blocks, b);
        if ((block.last ? at.loss : at.output) == kNever)
          fail(format("block {} never runs on micro-batch {}", block.name, m));
        if (at.graph != kNever && at.backward == kNever) fail_at(at.graph, "no backward uses its graph");
        if (at.weight_queued) fail_at(at.backward, "the weight gradient it queued is never computed");
      }
    }
  }

  std::vector<Values> values_;
  std::vector<int> batches_;
  std::vector<bool> receives_input_;     // per block
  std::vector<bool> receives_gradient_;  // per block
  std::vector<Use> uses_;
};

}  // namespace

std::vector<Use> check_dataflow(const CheckedProgram& checked) {
  return Dataflow(checked).check();
}

}  // namespace stepforge
