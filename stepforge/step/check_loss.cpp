#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Loss {
 public:
  explicit Loss(const CheckedProgram& checked) : checked_(checked), program_(checked.program) {
    for (std::size_t g = 0; g < program_.groups.size(); ++g)
      if (program_.groups[g].name == kLossGroup) group_ = static_cast<int>(g);
  }

  void check() {
    for (at_ = 0; at_ < program_.operations.size(); ++at_) visit(program_.operations[at_]);
    if (program_.kind == ProgramKind::train && group_ >= 0) {
      require_done(count_, "the labels of the step are never counted");
      require_done(reduce_, "the loss is never reduced");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { checked_.fail(at_, reason); }

  std::string over_group() const {
    return group_ < 0 ? "" : " over " + group_key(program_.groups[static_cast<std::size_t>(group_)]);
  }

  void require_done(int done, const char* what) const {
    if (done < 0) fail(what + over_group());
  }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::count_labels:
        once(count_, operation);
        return;
      case OpKind::reduce_loss:
        once(reduce_, operation);
        for (const std::size_t loss : losses_) checked_.require_order(loss, at_);
        return;
      case OpKind::loss_forward_backward:
        loss();
        return;
      case OpKind::check_finite:
        if (group_ >= 0) {
          require_done(reduce_, "the loss has not been reduced");
          checked_.require_order(static_cast<std::size_t>(reduce_), at_);
        }
        return;
      default:
        return;
    }
  }

  void once(int& done, const Operation& operation) {
    if (program_.kind != ProgramKind::train)
      fail(format("it does not belong into a program of kind {}", program_kind_name(program_.kind)));
    if (group_ < 0 || operation.group != group_)
      fail(group_ < 0 ? "the program has no group for the loss" : "it must run" + over_group());
    if (done >= 0) fail(format("{} has already done so", checked_.text(static_cast<std::size_t>(done))));
    done = static_cast<int>(at_);
  }

  /// It divides by the number of labels of the whole step.
  void loss() {
    if (reduce_ >= 0) {
      fail(format("the loss has already been reduced by {}",
                  checked_.text(static_cast<std::size_t>(reduce_))));
    }
    if (group_ >= 0) {
      require_done(count_, "the labels of the step have not been counted");
      checked_.require_order(static_cast<std::size_t>(count_), at_);
    }
    losses_.push_back(at_);
  }

  const CheckedProgram& checked_;
  const StepProgram& program_;
  int group_ = -1;
  int count_ = -1;
  int reduce_ = -1;
  std::vector<std::size_t> losses_;
  std::size_t at_ = 0;
};

}  // namespace

void check_loss(const CheckedProgram& checked) {
  Loss(checked).check();
}

}  // namespace stepforge
