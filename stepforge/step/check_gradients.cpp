#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// What one block adds to a unit's gradient on one micro-batch.
using Contribution = std::pair<int, int>;
/// A gradient as the sorted list of what was summed into it.
using Contents = std::vector<Contribution>;

/// A unit's gradient. Indices of operations; -1 for what has not happened.
struct Gradient {
  bool started = false;
  Contents contents;
  Contents reduced;  // a sharded unit's: summed into this rank's shard
  std::map<int, Contents> levels;
  std::vector<std::size_t> writers;  // all that touched it since it was last reduced
  int whole = -1;                    // a sharded unit's: the buffer of the gradient that is not reduced yet
  int reduce_start = -1;             // the latest, until the gradient is started again
  int reduce_wait = -1;
  int all_reduce_start = -1;
  int all_reduce_wait = -1;
  int update = -1;
};

class Gradients {
 public:
  explicit Gradients(const CheckedProgram& checked)
      : checked_(checked), program_(checked.program), gradients_(program_.units.size()) {}

  void check() {
    for (at_ = 0; at_ < program_.operations.size(); ++at_) visit(program_.operations[at_]);
    if (program_.kind == ProgramKind::train) check_end();
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { checked_.fail(at_, reason); }
  const ProgramUnit& unit(std::size_t index) const { return program_.units[index]; }
  std::string text(int operation) const { return checked_.text(static_cast<std::size_t>(operation)); }
  void require_order(int first) const { checked_.require_order(static_cast<std::size_t>(first), at_); }
  int here() const { return static_cast<int>(at_); }

  std::string contribution_text(const Contribution& contribution) const {
    return format("block {} on micro-batch {}",
                  program_.blocks[static_cast<std::size_t>(contribution.first)].name, contribution.second);
  }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::start_gradient:
        start(trainable(operation), operation);
        return;
      case OpKind::stash_gradient:
        stash(trainable(operation), operation);
        return;
      case OpKind::add_gradient:
        add(trainable(operation), operation.level);
        return;
      case OpKind::reduce_start:
      case OpKind::reduce_wait:
      case OpKind::all_reduce_start:
      case OpKind::all_reduce_wait:
        reduce(trainable(operation), operation);
        return;
      case OpKind::tie_reduce:
        tie(trainable(operation));
        return;
      case OpKind::gradient_norm:
        norm(operation);
        return;
      case OpKind::check_finite:
        check_finite();
        return;
      case OpKind::update:
        update(trainable(operation));
        return;
      default:
        compute(operation);
        return;
    }
  }

  Gradient& trainable(const Operation& operation) {
    if (program_.kind != ProgramKind::train)
      fail(format("it does not belong into a program of kind {}", program_kind_name(program_.kind)));
    const auto u = static_cast<std::size_t>(operation.unit);
    if (!unit(u).trainable) fail(format("unit {} is frozen", unit(u).name));
    return gradients_[u];
  }

  /// The gradient changes here: in order after all earlier changes, and before it is reduced or measured.
  void write(Gradient& gradient) {
    if (gradient.reduce_start >= 0 || gradient.all_reduce_start >= 0) {
      fail(format("the gradient has already been reduced by {}",
                  text(std::max(gradient.reduce_start, gradient.all_reduce_start))));
    }
    if (norm_ >= 0) fail(format("the gradient has already been measured by {}", text(norm_)));
    if (!gradient.writers.empty() && gradient.writers.back() != at_)
      checked_.require_order(gradient.writers.back(), at_);
    gradient.writers.push_back(at_);
  }

  void start(Gradient& gradient, const Operation& operation) {
    if (gradient.reduce_wait >= 0) {
      require_order(gradient.reduce_wait);
      gradient.reduce_start = gradient.reduce_wait = -1;
      gradient.writers.clear();
    }
    write(gradient);
    if (!gradient.contents.empty())
      fail(format("it drops the gradient of {}", contribution_text(gradient.contents.front())));
    gradient.started = true;
    if (unit(static_cast<std::size_t>(operation.unit)).reduces()) {
      gradient.whole = find_buffer(program_, operation.allocates, BufferKind::whole_gradient);
      if (gradient.whole < 0) fail("there is no buffer for its whole gradient");
    }
  }

  /// The unit's whole gradient, which the operation must read.
  void require_whole(const Gradient& gradient, const Operation& operation) const {
    if (find_buffer(program_, operation.reads, BufferKind::whole_gradient) != gradient.whole) {
      fail(format("it does not read buffer {}",
                  program_.buffers[static_cast<std::size_t>(gradient.whole)].name));
    }
  }

  void stash(Gradient& gradient, const Operation& operation) {
    const int level = operation.level;
    write(gradient);
    if (!gradient.started || gradient.contents.empty()) fail("there is no gradient to stash");
    if (gradient.levels.contains(level)) {
      fail(format("level {} still holds the gradient of {}", level,
                  contribution_text(gradient.levels[level].front())));
    }
    gradient.levels[level] = std::move(gradient.contents);
    gradient.contents.clear();
    gradient.started = false;
    if (gradient.whole >= 0) require_whole(gradient, operation);
  }

  void add(Gradient& gradient, int level) {
    write(gradient);
    const auto stashed = gradient.levels.find(level);
    if (stashed == gradient.levels.end()) fail(format("level {} holds no gradient", level));
    if (!gradient.started) fail("the gradient has not been started");
    Contents sum;
    std::merge(gradient.contents.begin(), gradient.contents.end(), stashed->second.begin(),
               stashed->second.end(), std::back_inserter(sum));
    gradient.contents = std::move(sum);
    gradient.levels.erase(stashed);
  }

  void compute(const Operation& operation) {
    const bool contributes = operation.kind == OpKind::backward ||
                             operation.kind == OpKind::backward_weight ||
                             operation.kind == OpKind::loss_forward_backward;
    if (!contributes && !uses_units(operation.kind)) return;
    for (const int index : program_.blocks[static_cast<std::size_t>(operation.block)].units) {
      const auto u = static_cast<std::size_t>(index);
      if (gradients_[u].update >= 0)
        fail(format("unit {} has already been changed by {}", unit(u).name, text(gradients_[u].update)));
      if (contributes && unit(u).trainable)
        contribute(gradients_[u], unit(u), {operation.block, operation.micro_batch});
    }
  }

  void contribute(Gradient& gradient, const ProgramUnit& unit, const Contribution& contribution) {
    write(gradient);
    if (!gradient.started) fail(format("the gradient of unit {} has not been started", unit.name));
    gradient.contents.insert(
        std::upper_bound(gradient.contents.begin(), gradient.contents.end(), contribution), contribution);
  }

  void reduce(Gradient& gradient, const Operation& operation) {
    switch (operation.kind) {
      case OpKind::reduce_start:
        begin_reduction(gradient, gradient.reduce_start);
        reduce_shards(gradient, operation);
        return;
      case OpKind::reduce_wait:
        end_reduction(gradient.reduce_start, gradient.reduce_wait);
        require_whole(gradient, operation);
        return;
      case OpKind::all_reduce_start:
        if (unit(static_cast<std::size_t>(operation.unit)).reduces()) {
          if (gradient.reduce_wait < 0) fail("the reduction into this rank's part must have finished first");
          require_order(gradient.reduce_wait);
        }
        begin_reduction(gradient, gradient.all_reduce_start);
        return;
      default:
        end_reduction(gradient.all_reduce_start, gradient.all_reduce_wait);
        return;
    }
  }

  void begin_reduction(Gradient& gradient, int& started) {
    if (started >= 0) fail(format("the gradient was already reduced by {}", text(started)));
    if (norm_ >= 0) fail(format("the gradient has already been measured by {}", text(norm_)));
    for (const std::size_t writer : gradient.writers) checked_.require_order(writer, at_);
    started = here();
  }

  /// What was summed in the whole gradient goes into the shard.
  void reduce_shards(Gradient& gradient, const Operation& operation) {
    if (!gradient.started || gradient.contents.empty()) fail("there is no gradient to reduce");
    require_whole(gradient, operation);
    const int64_t size = unit(static_cast<std::size_t>(operation.unit)).reduced_bytes;
    if (operation.bytes != size)
      fail(format("it sums {} bytes, but the gradient has {}", operation.bytes, size));
    if (operation.accumulate && gradient.reduced.empty()) fail("it adds to the gradient of the step before");
    if (!operation.accumulate && !gradient.reduced.empty())
      fail(format("it overwrites the reduced gradient of {}", contribution_text(gradient.reduced.front())));
    Contents sum;
    std::merge(gradient.contents.begin(), gradient.contents.end(), gradient.reduced.begin(),
               gradient.reduced.end(), std::back_inserter(sum));
    gradient.reduced = std::move(sum);
    gradient.contents.clear();
    gradient.started = false;
  }

  void end_reduction(int started, int& waited) {
    if (started < 0) fail("no reduction of the unit is under way");
    if (waited >= 0) fail(format("{} has already waited for it", text(waited)));
    require_order(started);
    waited = here();
  }

  void tie(Gradient& gradient) { write(gradient); }

  void norm(const Operation& operation) {
    if (program_.kind != ProgramKind::train) fail("only a training program measures gradients");
    if (norm_ >= 0) fail(format("the gradients were already measured by {}", text(norm_)));
    for (std::size_t u = 0; u < gradients_.size(); ++u) {
      if (unit(u).trainable) {
        require_complete(gradients_[u], static_cast<int>(u));
        require_reduced(gradients_[u], unit(u));
        require_measured_over(unit(u).shard_group, operation.group);
      }
    }
    norm_ = here();
  }

  /// Each rank has a part of the gradients: their norm is summed over the group.
  void require_measured_over(int shard_group, int group) const {
    if (shard_group >= 0 && group != shard_group) {
      const auto text = [&](int index) {
        return index < 0 ? "no group" : group_key(program_.groups[static_cast<std::size_t>(index)]);
      };
      fail(format("the gradients are cut over {}, but measured over {}", text(shard_group), text(group)));
    }
  }

  /// Each block that uses the unit has contributed once for each micro-batch.
  void require_complete(const Gradient& gradient, int u) const {
    const std::string& name = unit(static_cast<std::size_t>(u)).name;
    if (!gradient.levels.empty()) {
      fail(format("unit {}: the gradient stashed at level {} was never added", name,
                  gradient.levels.begin()->first));
    }
    Contents all;
    std::merge(gradient.contents.begin(), gradient.contents.end(), gradient.reduced.begin(),
               gradient.reduced.end(), std::back_inserter(all));
    const auto twice = std::adjacent_find(all.begin(), all.end());
    if (twice != all.end())
      fail(format("unit {}: the gradient of {} was added twice", name, contribution_text(*twice)));
    for (int b = 0; b < static_cast<int>(program_.blocks.size()); ++b) {
      const std::vector<int>& units = program_.blocks[static_cast<std::size_t>(b)].units;
      if (std::find(units.begin(), units.end(), u) == units.end()) continue;
      for (int m = 0; m < program_.micro_batches; ++m)
        if (!std::binary_search(all.begin(), all.end(), Contribution{b, m}))
          fail(format("unit {}: the gradient of {} is missing", name, contribution_text({b, m})));
    }
    for (const std::size_t writer : gradient.writers) checked_.require_order(writer, at_);
  }

  void require_reduced(const Gradient& gradient, const ProgramUnit& unit) const {
    const auto require = [&](int group, int started, int waited, const char* what) {
      if (waited < 0) {
        fail(format("unit {}: its gradient {} {}{}", unit.name,
                    started < 0 ? "has not been" : "is still being", what,
                    group < 0 ? "" : " over " + group_key(program_.groups[static_cast<std::size_t>(group)])));
      }
      require_order(waited);
    };
    if (unit.reduces()) require(unit.shard_group, gradient.reduce_start, gradient.reduce_wait, "reduced");
    if (unit.replica_group >= 0)
      require(unit.replica_group, gradient.all_reduce_start, gradient.all_reduce_wait, "all-reduced");
  }

  void check_finite() {
    if (check_ >= 0) fail(format("{} has already checked", text(check_)));
    if (norm_ < 0) fail("the gradients have not been measured");
    require_order(norm_);
    check_ = here();
  }

  void update(Gradient& gradient) {
    if (gradient.update >= 0) fail(format("the unit was already updated by {}", text(gradient.update)));
    if (norm_ < 0 || check_ < 0) {
      fail(norm_ < 0 ? "the gradients have not been measured"
                     : "loss and norm have not been checked to be finite");
    }
    require_order(check_);
    gradient.update = here();
  }

  void check_end() const {
    for (std::size_t u = 0; u < gradients_.size(); ++u)
      if (unit(u).trainable && gradients_[u].update < 0)
        fail(format("unit {} is never updated", unit(u).name));
  }

  const CheckedProgram& checked_;
  const StepProgram& program_;
  std::vector<Gradient> gradients_;
  int norm_ = -1;
  int check_ = -1;
  std::size_t at_ = 0;
};

}  // namespace

void check_gradients(const CheckedProgram& checked) {
  Gradients(checked).check();
}

}  // namespace stepforge
