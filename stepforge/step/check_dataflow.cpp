#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

constexpr int kNever = -1;

/// The life of the values that belong to one block and one micro-batch: the operations that made or used
/// them.
struct Values {
  int input = kNever;            // the receive that brought it
  int output = kNever;           // forward
  int graph = kNever;            // forward or recompute
  int output_gradient = kNever;  // the receive that brought it
  int input_gradient = kNever;   // backward or loss_forward_backward
  int backward = kNever;
  int backward_weight = kNever;
  int loss = kNever;
  bool weight_queued = false;
};

class Dataflow {
 public:
  explicit Dataflow(const CheckedProgram& checked)
      : checked_(checked),
        program_(checked.program),
        values_(program_.blocks.size() * static_cast<std::size_t>(program_.micro_batches)),
        batches_(static_cast<std::size_t>(program_.micro_batches), kNever),
        receives_input_(program_.blocks.size(), false),
        receives_gradient_(program_.blocks.size(), false) {
    for (const Operation& operation : program_.operations) {
      if (operation.kind == OpKind::receive) {
        auto& receives = carries_gradient(operation) ? receives_gradient_ : receives_input_;
        receives[static_cast<std::size_t>(operation.block)] = true;
      }
    }
  }

  std::vector<Use> check() {
    for (at_ = 0; at_ < program_.operations.size(); ++at_) visit(program_.operations[at_]);
    check_end();
    return std::move(uses_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { checked_.fail(at_, reason); }

  std::string done_by(int operation) const { return checked_.text(static_cast<std::size_t>(operation)); }

  /// A message carries the buffer it reads or allocates: a bundle forward, or a bundle's gradient backward.
  bool carries_gradient(const Operation& operation) const {
    const auto& buffers = operation.kind == OpKind::send ? operation.reads : operation.allocates;
    return find_buffer(program_, buffers, BufferKind::bundle_gradient) >= 0;
  }

  Values& values(int block, int micro_batch) {
    return values_[static_cast<std::size_t>(block) * static_cast<std::size_t>(program_.micro_batches) +
                   static_cast<std::size_t>(micro_batch)];
  }
  const ProgramBlock& block(const Operation& operation) const {
    return program_.blocks[static_cast<std::size_t>(operation.block)];
  }

  void use(int producer, BufferKind kind) {
    const auto made = static_cast<std::size_t>(producer);
    checked_.require_order(made, at_);
    uses_.push_back({made, at_, kind});
  }

  /// The block's input on this micro-batch must be there: the batch, what was received, or the block below's
  /// result.
  void use_input(const Operation& operation) {
    if (block(operation).first || block(operation).last) {
      const int batch = batches_[static_cast<std::size_t>(operation.micro_batch)];
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
    if (done != kNever) fail(format("{} was already done by {}", what, done_by(done)));
    done = static_cast<int>(at_);
  }

  void visit(const Operation& operation) {
    const bool trains = program_.kind == ProgramKind::train;
    switch (operation.kind) {
      case OpKind::load_batch:
        once(batches_[static_cast<std::size_t>(operation.micro_batch)], "loading this micro-batch");
        return;
      case OpKind::forward:
        forward(operation);
        return;
      case OpKind::recompute:
        recompute(operation);
        return;
      case OpKind::loss:
      case OpKind::logits:
        require_kind(!trains);
        loss(operation);
        return;
      case OpKind::loss_forward_backward:
        require_kind(trains);
        loss(operation);
        values(operation.block, operation.micro_batch).input_gradient = static_cast<int>(at_);
        return;
      case OpKind::backward:
      case OpKind::backward_input:
        require_kind(trains);
        backward(operation);
        return;
      case OpKind::backward_weight:
        require_kind(trains);
        backward_weight(operation);
        return;
      case OpKind::receive:
        receive(operation);
        return;
      case OpKind::send:
        send(operation);
        return;
      default:
        return;
    }
  }

  void require_kind(bool fits) const {
    if (!fits) fail(format("it does not belong into a program of kind {}", program_kind_name(program_.kind)));
  }

  void forward(const Operation& operation) {
    if (block(operation).last) fail("the head runs as loss, loss_forward_backward or logits");
    use_input(operation);
    Values& at = values(operation.block, operation.micro_batch);
    once(at.output, "this forward");
    if (operation.keep_graph) {
      require_kind(program_.kind == ProgramKind::train);
      at.graph = static_cast<int>(at_);
    }
  }

  void recompute(const Operation& operation) {
    require_kind(program_.kind == ProgramKind::train);
    Values& at = values(operation.block, operation.micro_batch);
    if (at.output == kNever) fail("its forward has not run");
    if (at.graph != kNever) fail(format("its graph already comes from {}", done_by(at.graph)));
    checked_.require_order(static_cast<std::size_t>(at.output), at_);
    use_input(operation);
    at.graph = static_cast<int>(at_);
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
    at.input_gradient = static_cast<int>(at_);
    at.weight_queued = operation.kind == OpKind::backward_input;
  }

  void backward_weight(const Operation& operation) {
    Values& at = values(operation.block, operation.micro_batch);
    if (!at.weight_queued && at.backward_weight == kNever) fail("no backward_input has queued it");
    once(at.backward_weight, "this weight gradient");
    use(at.graph, BufferKind::graph);
    checked_.require_order(static_cast<std::size_t>(at.backward), at_);
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
        const ProgramBlock& block = program_.blocks[static_cast<std::size_t>(b)];
        if ((block.last ? at.loss : at.output) == kNever)
          fail(format("block {} never runs on micro-batch {}", block.name, m));
        if (at.graph != kNever && at.backward == kNever)
          checked_.fail(static_cast<std::size_t>(at.graph), "no backward uses its graph");
        if (at.weight_queued) {
          checked_.fail(static_cast<std::size_t>(at.backward),
                        "the weight gradient it queued is never computed");
        }
      }
    }
  }

  const CheckedProgram& checked_;
  const StepProgram& program_;
  std::vector<Values> values_;
  std::vector<int> batches_;
  std::vector<bool> receives_input_;     // per block
  std::vector<bool> receives_gradient_;  // per block
  std::vector<Use> uses_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<Use> check_dataflow(const CheckedProgram& checked) {
  return Dataflow(checked).check();
}

}  // namespace stepforge
