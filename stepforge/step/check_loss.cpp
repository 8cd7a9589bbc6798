// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Loss : RuleWalk {
 public:
  explicit Loss(const CheckedProgram& checked) : RuleWalk(checked) {
    for (std::size_t g = 0; g < program_.groups.size(); ++g)
      if (program_.groups[g].name == kLossGroup) group_ = static_cast<int>(g);
  }

  void check() {
    walk([this](const Operation& operation) { visit(operation); });
    if (!trains() || group_ < 0) return;
    require_done(count_, "the labels of the step are never counted");
    require_done(reduce_, "the loss is never reduced");
  }

 private:
  void require_done(int done, const char* otherwise) const {
    if (done == kNever) fail(format("{} over {}", otherwise, group_text(group_)));
  }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::count_labels:
        return once(count_, operation);
      case OpKind::reduce_loss:
        once(reduce_, operation);
        for (const int loss : losses_) require_order(loss);
        return;
      case OpKind::loss_forward_backward:
        return loss();
      case OpKind::check_finite:
        if (group_ < 0) return;
        require_done(reduce_, "the loss has not been reduced");
        return require_order(reduce_);
      default:
        return;
    }
  }

  void once(int& done, const Operation& operation) const {
    if (group_ < 0) fail("the program has no group for the loss");
    if (operation.group != group_) fail("it must run over " + group_text(group_));
    if (done != kNever) fail(format("{} has already done so", text(done)));
    done = here();
  }

  /// It divides by the number of labels of the whole step.
  void loss() {
    if (reduce_ != kNever) fail(format("the loss has already been reduced by {}", text(reduce_)));
    if (group_ >= 0) {
      require_done(count_, "the labels of the step have not been counted");
      require_order(count_);
    }
    losses_.push_back(here());
  }

  int group_ = -1;
  int count_ = kNever;
  int reduce_ = kNever;
  std::vector<int> losses_;
};

}  // namespace

void check_loss(const CheckedProgram& checked) {
  Loss(checked).check();
}

}  // namespace stepforge
