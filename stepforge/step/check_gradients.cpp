// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

/// Block and micro-batch of what is added to a gradient.
using Contribution = std::pair<int, int>;
/// A gradient as the sorted list of its contributions.
using Contents = std::vector<Contribution>;

Contents merged(const Contents& a, const Contents& b) {
  Contents all;
  std::ranges::merge(a, b, std::back_inserter(all));
  return all;
}

/// The gradient of one unit.
struct Gradient {
  bool started = false;
  Contents contents;
  Contents reduced;  // of a unit that reduces: summed into its shard
  std::map<int, Contents> levels;
  std::vector<int> writers;   // operations since it was last reduced
  int whole = -1;             // of a unit that reduces: the buffer of the gradient that is not reduced yet
  int reduce_start = kNever;  // the latest, until the gradient is started again
  int reduce_wait = kNever;
  int all_reduce_start = kNever;
  int all_reduce_wait = kNever;
  int tied = kNever;
  int update = kNever;
};

class Gradients : RuleWalk {
 public:
  explicit Gradients(const CheckedProgram& checked)
      : RuleWalk(checked), gradients_(program_.units.size()), users_(program_.units.size()) {
    for (int b = 0; b < std::ssize(program_.blocks); ++b)
      for (const int u : element(program_.blocks, b).units) element(users_, u).push_back(b);
  }

  void check() {
    walk([this](const Operation& operation) { visit(operation); });
    for (std::size_t u = 0; trains() && u < gradients_.size(); ++u)
      if (program_.units[u].trainable && gradients_[u].update < 0)
        fail(format("unit {} is never updated", program_.units[u].name));
  }

 private:
  std::string contribution_text(const Contribution& contribution) const {
    return format("block {} on micro-batch {}", element(program_.blocks, contribution.first).name,
                  contribution.second);
  }

  void visit(const Operation& operation) {
    switch (operation.kind) {
      case OpKind::start_gradient:
        return start(trainable(operation), operation);
      case OpKind::stash_gradient:
        return stash(trainable(operation), operation);
      case OpKind::add_gradient:
        return add(trainable(operation), operation.level);
      case OpKind::reduce_start:
        begin_reduction(trainable(operation), trainable(operation).reduce_start);
        return reduce_shards(trainable(operation), operation);
      case OpKind::reduce_wait:
        end_reduction(trainable(operation).reduce_start, trainable(operation).reduce_wait);
        return require_whole(trainable(operation), operation);
      case OpKind::all_reduce_start:
        require_shards_reduced(trainable(operation), operation);
        return begin_reduction(trainable(operation), trainable(operation).all_reduce_start);
      case OpKind::all_reduce_wait:
        return end_reduction(trainable(operation).all_reduce_start, trainable(operation).all_reduce_wait);
      case OpKind::tie_reduce:
        return tie(trainable(operation), operation);
      case OpKind::gradient_norm:
        return norm(operation);
      case OpKind::join_norm:
        return join(operation, joined_, norm_, find_group(program_.groups, kTensorGroup));
      case OpKind::join_stage_norms:
        return join(operation, stages_joined_, last_norm(), find_group(program_.groups, kPipelineGroup));
      case OpKind::check_finite:
        return check_finite();
      case OpKind::update:
        return update(trainable(operation));
      default:
        return compute(operation);
    }
  }

  Gradient& trainable(const Operation& operation) {
    if (!unit(operation.unit).trainable) fail(format("unit {} is frozen", unit(operation.unit).name));
    return element(gradients_, operation.unit);
  }

  /// The current operation changes the gradient: after all earlier changes, before the reduction and the
  /// norm.
  void write(Gradient& gradient) {
    require_never(std::max(gradient.reduce_start, gradient.all_reduce_start),
                  "the gradient was already reduced");
    require_never(norm_, "the norm was already computed");
    if (!gradient.writers.empty()) require_order(gradient.writers.back());
    gradient.writers.push_back(here());
  }

  void start(Gradient& gradient, const Operation& operation) {
    if (gradient.reduce_wait >= 0) {
      require_order(gradient.reduce_wait);
      gradient.reduce_start = gradient.reduce_wait = kNever;
      gradient.writers.clear();
    }
    write(gradient);
    if (!gradient.contents.empty())
      fail(format("it drops the gradient of {}", contribution_text(gradient.contents.front())));
    gradient.started = true;
    if (unit(operation.unit).reduces()) {
      gradient.whole = find_buffer(program_, operation.allocates, BufferKind::whole_gradient);
      if (gradient.whole < 0) fail("there is no buffer for its whole gradient");
    }
  }

  /// The operation must read the whole gradient of the unit.
  void require_whole(const Gradient& gradient, const Operation& operation) const {
    if (find_buffer(program_, operation.reads, BufferKind::whole_gradient) != gradient.whole)
      fail(format("it does not read buffer {}", element(program_.buffers, gradient.whole).name));
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
    gradient.contents = merged(gradient.contents, stashed->second);
    gradient.levels.erase(stashed);
  }

  void compute(const Operation& operation) {
    const bool contributes = has_trait(operation.kind, kContributes);
    if (!contributes && !has_trait(operation.kind, kUsesUnits)) return;
    for (const int u : block(operation).units) {
      Gradient& gradient = element(gradients_, u);
      if (gradient.update != kNever)
        require_never(gradient.update, format("unit {} was already updated", unit(u).name));
      if (contributes && unit(u).trainable) contribute(gradient, u, {operation.block, operation.micro_batch});
    }
  }

  void contribute(Gradient& gradient, int u, const Contribution& contribution) {
    write(gradient);
    if (!gradient.started) fail(format("the gradient of unit {} has not been started", unit(u).name));
    gradient.contents.insert(
        std::upper_bound(gradient.contents.begin(), gradient.contents.end(), contribution), contribution);
  }

  void require_shards_reduced(const Gradient& gradient, const Operation& operation) const {
    if (!unit(operation.unit).reduces()) return;
    require_done(gradient.reduce_wait, "the reduction into the shard must have finished first");
  }

  void begin_reduction(Gradient& gradient, int& started) {
    once(started, "the gradient was already reduced");
    require_never(norm_, "the norm was already computed");
    for (const int writer : gradient.writers) require_order(writer);
  }

  /// Moves the contributions from the whole gradient to the shard.
  void reduce_shards(Gradient& gradient, const Operation& operation) {
    if (!gradient.started || gradient.contents.empty()) fail("there is no gradient to reduce");
    require_whole(gradient, operation);
    const int64_t size = unit(operation.unit).reduced_bytes;
    if (operation.bytes != size)
      fail(format("it sums {} bytes, but the gradient has {}", operation.bytes, size));
    if (operation.accumulate && gradient.reduced.empty()) fail("it adds to the gradient of the step before");
    if (!operation.accumulate && !gradient.reduced.empty())
      fail(format("it overwrites the reduced gradient of {}", contribution_text(gradient.reduced.front())));
    gradient.reduced = merged(gradient.contents, gradient.reduced);
    gradient.contents.clear();
    gradient.started = false;
  }

  void end_reduction(int started, int& waited) {
    require_done(started, "no reduction of the unit is under way");
    once(waited, "the reduction was already waited for");
  }

  void norm(const Operation& operation) {
    for (int u = 0; u < std::ssize(gradients_); ++u) {
      if (!unit(u).trainable) continue;
      require_complete(element(gradients_, u), u);
      require_reduced(element(gradients_, u), unit(u));
      if (unit(u).tie_group >= 0) {
        require_done(element(gradients_, u).tied,
                     format("unit {}: its gradient has not been summed over its copies, {}", unit(u).name,
                            group_text(unit(u).tie_group)));
      }
      // Each rank has a shard of the gradients, so their norm is summed over the group.
      if (const int group = unit(u).shard_group; group >= 0 && operation.group != group) {
        fail(format("the gradients are sharded over {}, but their norm is computed over {}",
                    group_text(group), group_text(operation.group)));
      }
    }
    once(norm_, "the norm was already computed");
  }

  /// Each block that uses the unit has contributed exactly once for each micro-batch.
  void require_complete(const Gradient& gradient, int u) const {
    const std::string& name = unit(u).name;
    if (!gradient.levels.empty()) {
      fail(format("unit {}: the gradient stashed at level {} was never added", name,
                  gradient.levels.begin()->first));
    }
    const Contents all = merged(gradient.contents, gradient.reduced);
    const auto twice = std::adjacent_find(all.begin(), all.end());
    if (twice != all.end())
      fail(format("unit {}: the gradient of {} was added twice", name, contribution_text(*twice)));
    for (const int b : element(users_, u)) {
      for (int m = 0; m < program_.micro_batches; ++m)
        if (!std::binary_search(all.begin(), all.end(), Contribution{b, m}))
          fail(format("unit {}: the gradient of {} is missing", name, contribution_text({b, m})));
    }
    for (const int writer : gradient.writers) require_order(writer);
  }

  void require_reduced(const Gradient& gradient, const ProgramUnit& unit) const {
    const auto require = [&](int group, int started, int waited, const char* done) {
      if (waited < 0) {
        fail(format("unit {}: its gradient {} {}{}", unit.name,
                    started < 0 ? "has not been" : "is still being", done,
                    group < 0 ? "" : " over " + group_text(group)));
      }
      require_order(waited);
    };
    if (unit.reduces()) require(unit.shard_group, gradient.reduce_start, gradient.reduce_wait, "reduced");
    if (unit.replica_group >= 0)
      require(unit.replica_group, gradient.all_reduce_start, gradient.all_reduce_wait, "all-reduced");
  }

  /// Sums what the stages that hold a copy of the unit have, when each has its whole sum.
  void tie(Gradient& gradient, const Operation& operation) {
    if (operation.group != unit(operation.unit).tie_group)
      fail("it must run over " + group_text(unit(operation.unit).tie_group));
    require_never(norm_, "the norm was already computed");
    require_complete(gradient, operation.unit);
    require_reduced(gradient, unit(operation.unit));
    once(gradient.tied, "the gradient was already summed over the copies of the unit");
  }

  /// Each rank of tensor parallelism has its own part of the gradients, and each stage its own units.
  void join(const Operation& operation, int& joined, int before, int group) {
    require_done(norm_, "the gradient norm has not been computed");
    require_order(before);
    if (operation.group != group) fail("it must run over " + group_text(group));
    once(joined, "the norm was already joined");
  }

  /// The operation after which the norms of tensor-parallel parts are known.
  int last_norm() const {
    if (const int tensor = find_group(program_.groups, kTensorGroup); tensor >= 0)
      require_done(joined_, "the norm has not been joined over " + group_text(tensor));
    return std::max(norm_, joined_);
  }

  void check_finite() {
    require_done(norm_, "the gradient norm has not been computed");
    require_order(last_norm());
    if (const int stages = find_group(program_.groups, kPipelineGroup); stages >= 0)
      require_done(stages_joined_, "the norm has not been joined over " + group_text(stages));
    once(check_, "the loss and the norm were already checked");
  }

  void update(Gradient& gradient) {
    require_done(norm_, "the gradient norm has not been computed");
    require_done(check_, "the loss and the norm have not been checked to be finite");
    once(gradient.update, "the unit was already updated");
  }

  std::vector<Gradient> gradients_;      // of each unit
  std::vector<std::vector<int>> users_;  // of each unit: the blocks that use it
  int norm_ = kNever;
  int joined_ = kNever;
  int stages_joined_ = kNever;
  int check_ = kNever;
};

}  // namespace

void check_gradients(const CheckedProgram& checked) {
  Gradients(checked).check();
}

}  // namespace stepforge
