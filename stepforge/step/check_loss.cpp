// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Loss : RuleWalk {
 public:
  explicit Loss(const CheckedProgram& checked)
      : RuleWalk(checked),
        group_(has_loss() ? find_group(program_.groups, kLossGroup) : -1),
        all_ranks_(has_loss() ? label_group(program_.groups) : -1),
        stages_(find_group(program_.groups, kPipelineGroup)) {}

  void check() {
    walk([this](const Operation& operation) { visit(operation); });
    require_over(all_ranks_, count_, "the labels of the step are never counted");
    require_over(stages_, share_, has_loss() ? "the loss is never shared" : "the logits are never shared");
    require_over(group_, reduce_, "the loss is never reduced");
  }

 private:
  bool has_loss() const { return program_.kind != ProgramKind::generate; }

  void require_over(int group, int done, const char* reason) const {
    if (group >= 0 && done == kNever) fail(format("{} over {}", reason, group_text(group)));
  }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::count_labels:
        require_group(operation, all_ranks_);
        return once(count_, "the labels were already counted");
      case OpKind::share_loss:
      case OpKind::share_logits:
        if ((operation.kind == OpKind::share_loss) != has_loss())
          fail(format("it does not belong in a program of kind {}", program_kind_name(program_.kind)));
        require_group(operation, stages_);
        once(share_, "the loss was already shared");
        require_never(reduce_, "the loss was already reduced");
        for (const int loss : losses_) require_order(loss);
        return;
      case OpKind::reduce_loss:
        require_group(operation, group_);
        once(reduce_, "the loss was already reduced");
        require_over(stages_, share_, "the loss has not been shared");
        require_order(share_);
        for (const int loss : losses_) require_order(loss);
        return;
      case OpKind::loss:
      case OpKind::loss_forward_backward:
      case OpKind::logits:
        return loss();
      case OpKind::check_finite:
        require_over(stages_, share_, "the loss has not been shared");
        require_order(share_);
        if (group_ < 0) return;
        require_over(group_, reduce_, "the loss has not been reduced");
        return require_order(reduce_);
      default:
        return;
    }
  }

  void require_group(const Operation& operation, int group) const {
    if (group < 0) fail("the program has no group for the loss");
    if (operation.group != group) fail("it must run over " + group_text(group));
  }

  /// The loss is divided by the number of labels of the whole step.
  void loss() {
    require_never(share_, "the loss was already shared");
    require_never(reduce_, "the loss was already reduced");
    if (all_ranks_ >= 0) {
      require_over(all_ranks_, count_, "the labels of the step have not been counted");
      require_order(count_);
    }
    losses_.push_back(here());
  }

  int group_;
  int all_ranks_;
  int stages_;
  int count_ = kNever;
  int share_ = kNever;
  int reduce_ = kNever;
  std::vector<int> losses_;
};

}  // namespace

void check_loss(const CheckedProgram& checked) {
  Loss(checked).check();
}

}  // namespace stepforge
