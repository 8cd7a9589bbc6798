// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

constexpr int kNone = -1;

/// The operations that made or used the values of one block on one micro-batch.
struct Values {
  int input = kNone;            // the receive that brought it
  int output = kNone;           // forward
  int graph = kNone;            // forward or recompute
  int output_gradient = kNone;  // the receive that brought it
  int input_gradient = kNone;   // backward or loss_forward_backward
  int backward = kNone;
  int backward_weight = kNone;
  int loss = kNone;
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
      receives[static_cast<std::size_t>(operation.block)] = true;
    }
  }

  std::vector<Use> check() {
    walk([this](const Operation& operation) { visit(operation); });
    check_end();
    return std::move(uses_);
  }

 private:
  /// A message carries the buffer it reads or allocates: a bundle forward, or a bundle's gradient backward.
  bool carries_gradient(const Operation& operation) const {
    const auto& buffers = operation.kind == OpKind::send ? operation.reads : operation.allocates;
    return find_buffer(program_, buffers, BufferKind::bundle_gradient) >= 0;
  }

  Values& values(int block, int micro_batch) {
    return values_[static_cast<std::size_t>(block) * static_cast<std::size_t>(program_.micro_batches) +
                   static_cast<std::size_t>(micro_batch)];
  }

  void use(int producer, BufferKind kind) {
    require_order(producer);
    uses_.push_back({producer, here(), kind});
  }

  /// The block's input on this micro-batch must be there: the batch, what was received, or the block below's
  /// result.
  void use_input(const Operation& operation) {
    if (block(operation).first || block(operation).last) {
      const int batch = element(batches_, operation.micro_batch);
      if (batch == kNever) fail(format("micro-batch {} has not been loaded", operation.micro_batch));
      use(batch, BufferKind::batch);
    }
    if (block(operation).first) return;
    int input = kNever;
    if (receives_input_[static_cast<std::size_t>(operation.block)])
      input = values(operation.block, operation.micro_batch).input;
    else if (operation.block > 0)
      input = values(operation.block - 1, operation.micro_batch).output;
    if (input == kNever) fail("its input is missing: neither computed by the block below nor received");
    use(input, BufferKind::bundle);
  }

  void use_output_gradient(const Operation& operation) {
    int gradient = kNever;
    if (receives_gradient_[static_cast<std::size_t>(operation.block)])
      gradient = values(operation.block, operation.micro_batch).output_gradient;
    else if (static_cast<std::size_t>(operation.block) + 1 < program_.blocks.size())
      gradient = values(operation.block + 1, operation.micro_batch).input_gradient;
    if (gradient == kNever)
      fail("the gradient of its result is missing: neither computed by the block above nor received");
    use(gradient, BufferKind::bundle_gradient);
  }

  void once(int& done, const char* what) {
    if (done != kNever) fail(format("{} was already done by {}", what, text(done)));
    done = here();
  }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::load_batch:
        return once(element(batches_, operation.micro_batch), "loading this micro-batch");
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
    if (block(operation).last) fail("the head runs as loss, loss_forward_backward or logits");
    use_input(operation);
    Values& at = values(operation.block, operation.micro_batch);
    once(at.output, "this forward");
    if (operation.keep_graph) {
      if (!trains())
        fail(format("no backward uses its graph in a program of kind {}", program_kind_name(program_.kind)));
      at.graph = here();
    }
  }

  void recompute(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    if (at.output == kNever) fail("its forward has not run");
    if (at.graph != kNever) fail(format("its graph already comes from {}", text(at.graph)));
    require_order(at.output);
    use_input(operation);
    at.graph = here();
  }

  void loss(const Operation& operation) {
    if (!block(operation).last) fail("only the head makes a loss or logits");
    use_input(operation);
    once(values(operation.block, operation.micro_batch).loss, "the head on this micro-batch");
  }

  void backward(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    once(at.backward, "this backward");
    if (at.graph == kNever) {
      fail(at.output == kNever ? "its forward has not run"
                               : "its graph is missing: forward kept none and nothing recomputed it");
    }
    use(at.graph, BufferKind::graph);
    use_output_gradient(operation);
    use_input(operation);
    at.input_gradient = here();
    at.weight_queued = operation.kind == OpKind::backward_input;
  }

  void backward_weight(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    if (!at.weight_queued && at.backward_weight == kNever) fail("no backward_input has queued it");
    once(at.backward_weight, "this weight gradient");
    use(at.graph, BufferKind::graph);
    require_order(at.backward);
    at.weight_queued = false;
  }

  void receive(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    if (carries_gradient(operation))
      once(at.output_gradient, "receiving this gradient");
    else
      once(at.input, "receiving this input");
  }

  void send(const Operation& operation) {
    const Values& at = values(operation.block, operation.micro_batch);
    const bool gradient = carries_gradient(operation);
    const int made = gradient ? at.input_gradient : at.output;
    if (made == kNever) {
      fail(gradient ? "the gradient it sends has not been computed"
                    : "the bundle it sends has not been computed");
    }
    use(made, gradient ? BufferKind::bundle_gradient : BufferKind::bundle);
  }

  /// Every block has run on every micro-batch, and no graph or queued weight gradient is left over.
  void check_end() {
    for (int b = 0; b < static_cast<int>(program_.blocks.size()); ++b) {
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
