// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

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
  Contents reduced;  // of a sharded unit: summed into this rank's shard
  std::map<int, Contents> levels;
  std::vector<int> writers;  // all that changed it since it was last reduced
  int whole = -1;            // of a sharded unit: the buffer of the gradient that is not reduced yet
  int reduce_start = -1;     // the latest, until the gradient is started again
  int reduce_wait = -1;
  int all_reduce_start = -1;
  int all_reduce_wait = -1;
  int update = -1;
};

class Gradients : RuleWalk {
 public:
  explicit Gradients(const CheckedProgram& checked)
      : RuleWalk(checked), gradients_(program_.units.size()), users_(program_.units.size()) {
    for (int b = 0; b < static_cast<int>(program_.blocks.size()); ++b)
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
        return write(trainable(operation));
      case OpKind::gradient_norm:
        return norm(operation);
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

  /// The gradient changes here: in order after all earlier changes, and before it is reduced or measured.
  void write(Gradient& gradient) {
    if (gradient.reduce_start >= 0 || gradient.all_reduce_start >= 0) {
      fail(format("the gradient has already been reduced by {}",
                  text(std::max(gradient.reduce_start, gradient.all_reduce_start))));
    }
    if (norm_ >= 0) fail(format("the gradient has already been measured by {}", text(norm_)));
    if (!gradient.writers.empty()) require_order(gradient.writers.back());
    gradient.writers.push_back(here());
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
    Contents sum;
    std::merge(gradient.contents.begin(), gradient.contents.end(), stashed->second.begin(),
               stashed->second.end(), std::back_inserter(sum));
    gradient.contents = std::move(sum);
    gradient.levels.erase(stashed);
  }

  void compute(const Operation& operation) {
    const bool contributes = has_trait(operation.kind, kContributes);
    if (!contributes && !has_trait(operation.kind, kUsesUnits)) return;
    for (const int u : block(operation).units) {
      Gradient& gradient = element(gradients_, u);
      if (gradient.update >= 0)
        fail(format("unit {} has already been changed by {}", unit(u).name, text(gradient.update)));
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
    if (gradient.reduce_wait < 0) fail("the reduction into this rank's part must have finished first");
    require_order(gradient.reduce_wait);
  }

  void begin_reduction(Gradient& gradient, int& started) {
    if (started >= 0) fail(format("the gradient was already reduced by {}", text(started)));
    if (norm_ >= 0) fail(format("the gradient has already been measured by {}", text(norm_)));
    for (const int writer : gradient.writers) require_order(writer);
    started = here();
  }

  /// What was summed in the whole gradient goes into the shard.
  void reduce_shards(Gradient& gradient, const Operation& operation) {
    if (!gradient.started || gradient.contents.empty()) fail("there is no gradient to reduce");
    require_whole(gradient, operation);
    const int64_t size = unit(operation.unit).reduced_bytes;
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

  void norm(const Operation& operation) {
    if (norm_ >= 0) fail(format("the gradients were already measured by {}", text(norm_)));
    for (int u = 0; u < static_cast<int>(gradients_.size()); ++u) {
      if (!unit(u).trainable) continue;
      require_complete(gradients_[static_cast<std::size_t>(u)], u);
      require_reduced(gradients_[static_cast<std::size_t>(u)], unit(u));
      // Each rank has a part of the gradients: their norm is summed over the group.
      if (const int group = unit(u).shard_group; group >= 0 && operation.group != group) {
        fail(format("the gradients are cut over {}, but measured over {}", group_text(group),
                    group_text(operation.group)));
      }
    }
    norm_ = here();
  }

  /// Each block that uses the unit has contributed once for each micro-batch.
  void require_complete(const Gradient& gradient, int u) const {
    const std::string& name = unit(u).name;
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

  std::vector<Gradient> gradients_;      // of each unit
  std::vector<std::vector<int>> users_;  // of each unit: the blocks that use it
  int norm_ = -1;
  int check_ = -1;
};

}  // namespace

void check_gradients(const CheckedProgram& checked) {
  Gradients(checked).check();
}

}  // namespace stepforge
