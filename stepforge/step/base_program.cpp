// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_kind.h"
#include "stepforge/step/lowering.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

void require_trained(const ModelSpec& model) {
  if (std::ranges::none_of(model.units, &UnitSpec::trainable))
    throw UsageError("every unit of the model is frozen: there is nothing to train; unfreeze at least one");
}

/// Appends operations to a program.
class Writer {
 public:
  explicit Writer(StepProgram& program) : program_(program) {}

  Operation& add(OpKind kind, int unit = -1, int group = -1) {
    return program_.operations.emplace_back(make_operation(kind, unit, group));
  }
  /// Adds the operation if there is such a group.
  void add_over(int group, OpKind kind, int unit = -1) {
    if (group >= 0) add(kind, unit, group);
  }

 private:
  StepProgram& program_;
};

/// The sums over the copies of a unit: one of the whole gradient or, in ordered mode, one of each micro-batch. They
/// come after all contributions; earlier, ranks would wait for each other in a cycle.
void write_tie(Writer& writer, const StepProgram& program, int unit, bool ordered) {
  for (int m = 0; m < (ordered ? program.micro_batches : 1); ++m) {
    const OpKind kind = ordered ? OpKind::tie_leaf : OpKind::tie_reduce;
    Operation& sum = writer.add(kind, unit, element(program.units, unit).tie_group);
    if (ordered) sum.micro_batch = m;
  }
}

void write_training(StepProgram& program, const RankLayout& layout, const StepOptions& options) {
  Writer writer(program);
  writer.add_over(label_group(program.groups), OpKind::count_labels);
  for (int u = 0; u < std::ssize(program.units); ++u) {
    const ProgramUnit& unit = element(program.units, u);
    if (unit.trainable && !unit.reduces()) writer.add(OpKind::start_gradient, u);  // others: reduce_pass
  }
  lower_schedule(program, layout, options.pipeline);
  for (int u = 0; u < std::ssize(program.units); ++u)
    if (element(program.units, u).trainable && element(program.units, u).tie_group >= 0)
      write_tie(writer, program, u, options.ordered);
  writer.add_over(layout.pipeline_group, OpKind::share_loss);
  writer.add_over(find_group(program.groups, kLossGroup), OpKind::reduce_loss);
  writer.add(OpKind::gradient_norm, -1, find_group(program.groups, kShardGroup));
  writer.add_over(find_group(program.groups, kTensorGroup), OpKind::join_norm);
  writer.add_over(layout.pipeline_group, OpKind::join_stage_norms);
  writer.add(OpKind::check_finite);
  for (int u = 0; u < std::ssize(program.units); ++u)
    if (element(program.units, u).trainable) writer.add(OpKind::update, u);
  for (int u = 0; u < std::ssize(program.units); ++u)
    if (element(program.units, u).state) writer.add(OpKind::update_state, u, stage_group(program.groups));
}

void write_forward_only(StepProgram& program, const RankLayout& layout, const StepOptions& options) {
  Writer writer(program);
  const bool with_loss = program.kind == ProgramKind::evaluate;
  if (with_loss) writer.add_over(label_group(program.groups), OpKind::count_labels);
  lower_forward(program, layout, options.pipeline);
  if (!with_loss) return writer.add_over(layout.pipeline_group, OpKind::share_logits);
  writer.add_over(layout.pipeline_group, OpKind::share_loss);
  writer.add_over(find_group(program.groups, kLossGroup), OpKind::reduce_loss);
}

/// The first block of the first stage, and no other, is an embedding, and the last one of the last stage a head. There may
/// be other heads in the last stage.
void check_model(const ModelSpec& model, const PipelineOptions& pipeline) {
  const int stages = std::max(1, pipeline.schedule.stages());
  const auto refuse = [&] {
    throw UsageError(
        format("model family \"{}\": its blocks must start with an embedding and end with a head, "
               "and all heads must be in the last stage",
               model.family));
  };
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockSpec& block = model.blocks[b];
    const bool first = block.stage == 0 && b == 0;
    const bool last = block.stage + 1 == stages && b + 1 == model.blocks.size();
    const bool may_be_head = block.stage + 1 == stages;
    if (first != (block.kind == BlockKind::embedding) || (last && block.kind != BlockKind::head) ||
        (!may_be_head && block.kind == BlockKind::head))
      refuse();
  }
  if (model.blocks.empty() || (stages == 1 && model.blocks.size() < 2)) refuse();
  for (const BlockSpec& block : model.blocks) {
    for (const int unit : block.units) {
      if (unit < 0 || unit >= std::ssize(model.units)) {
        throw UsageError(format("block {} uses unit {}, but the model has {} units", block.name, unit,
                                model.units.size()));
      }
    }
  }
}

/// Throws UsageError for a program that would not fit into memory.
void check_size(const ModelSpec& model, int micro_batches) {
  constexpr int64_t kMaxComputations = int64_t{1} << 18;
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  if (micro_batches > kMaxComputations / blocks) {
    throw UsageError(format(
        "a step of {} micro-batches on each rank, each through {} blocks, is a program of more than {} "
        "forwards, the maximum; use at most {} micro-batches per rank: raise training.local_batch_size, "
        "lower training.global_batch_size or use more ranks",
        with_thousands(micro_batches), with_thousands(blocks), with_thousands(kMaxComputations),
        with_thousands(kMaxComputations / blocks)));
  }
}

/// This rank's units, from their layout.
void add_units(StepProgram& program, const ModelSpec& model, const RankLayout& layout,
               const StepOptions& options) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const UnitLayout& unit = layout.units.at(u);
    program.units.push_back(
        {.name = model.units[u].name,
         .trainable = model.units[u].trainable,
         .resident = unit.gather == model.units[u].master && unit.shard_group < 0 && !unit.offloaded,
         .shard_group = unit.shard_group,
         .replica_group = unit.replica_group(),
         .tie_group = unit.tie_group,
         .offloaded = unit.offloaded,
         .state = model.units[u].state && options.update_state});
  }
}

/// Marks the blocks on which neither the first head nor another stage depends.
void mark_trained_only(StepProgram& program) {
  std::vector<bool> taken(program.values.size(), false);
  const auto take = [&](const std::vector<int>& values) {
    for (const int value : values) element(taken, value) = true;
  };
  const auto head = std::ranges::find_if(program.blocks, &ProgramBlock::last) - program.blocks.begin();
  for (int b = static_cast<int>(program.blocks.size()) - 1; b >= 0; --b) {
    ProgramBlock& block = element(program.blocks, b);
    take(block.leaving);
    const std::vector<int>& made = block.experts > 0 ? block.returned : block.outputs;
    block.trained_only =
        b != head && std::ranges::none_of(made, [&](int value) { return element(taken, value); });
    if (!block.trained_only) take(block.experts > 0 ? block.sent : block.inputs);
  }
}

/// Adds the values that pass between the blocks of this rank, and to and from other stages.
class ValueWriter {
 public:
  ValueWriter(StepProgram& program, const CostContext& cost) : program_(program), cost_(cost) {}

  void add(const ModelSpec& model) {
    for (int b = 0; b < std::ssize(model.blocks); ++b) add(element(model.blocks, b), b);
    for (const ProgramValue& value : program_.values)
      if (value.consumers.empty() && !sent_.contains(&value - program_.values.data()))
        throw UsageError(format("no block takes the value {} that a block makes", value.name));
  }

 private:
  struct Named {
    BundleEntry entry;
    int value = -1;
  };

  void add(const BlockSpec& block, int b) {
    ProgramBlock& added = element(program_.blocks, b);
    if (!block.arriving.empty()) current_.clear();
    for (const BundleEntry& entry : block.arriving) {
      const std::string part = block.arriving.size() == 1 ? "input" : entry.name;
      if (has(entry)) added.arriving.push_back(make(format("{} of {}", part, block.name), entry, -1));
    }
    std::vector<int>& takes = block.dispatch ? added.sent : added.inputs;
    for (const BundleEntry& entry : block.takes()) {
      if (!has(entry)) continue;
      takes.push_back(take(block, entry));
      element(program_.values, takes.back()).consumers.push_back(b);
    }
    const std::vector<std::string> kept = kept_outputs(block);
    std::vector<int>& makes = block.dispatch ? added.returned : added.outputs;
    for (const BundleEntry& entry : block.makes()) {
      if (!has(entry)) continue;
      const std::string part = block.makes().size() == 1 ? "" : "." + entry.name;
      makes.push_back(make(block.name + part, entry, b));
      if (std::ranges::count(kept, entry.name) > 0) added.kept.push_back(makes.back());
    }
    if (block.dispatch) add_rows(block, b);
    for (const BundleEntry& entry : block.leaving) {
      if (!has(entry)) continue;
      added.leaving.push_back(take(block, entry));
      sent_.insert(added.leaving.back());
    }
  }

  /// The values that the block takes from a dispatch and makes for a combine; no other block takes or makes them.
  void add_rows(const BlockSpec& block, int b) {
    ProgramBlock& added = element(program_.blocks, b);
    added.experts = block.dispatch->experts;
    added.parts = block.dispatch->parts;
    added.method = block.dispatch->method;
    const auto add_all = [&](const std::vector<BundleEntry>& entries, int producer,
                             std::vector<int>& values) {
      for (const BundleEntry& entry : entries) {
        values.push_back(append(format("{} of {}", entry.name, block.name), entry, producer));
        element(program_.values, values.back()).consumers.push_back(b);
      }
    };
    const int tokens_of = element(program_.values, added.sent.at(0)).producer;
    if (tokens_of < 0)
      throw UsageError(format("block {} has another stage than the block whose rows it takes", block.name));
    add_all(block.inputs, tokens_of, added.inputs);
    add_all(block.outputs, b, added.outputs);
  }

  bool has(const BundleEntry& entry) const { return program_.kind == ProgramKind::train || !entry.ahead; }

  int make(const std::string& name, const BundleEntry& entry, int producer) {
    const int value = append(name, entry, producer);
    current_[entry.name] = {entry, value};
    return value;
  }

  int append(const std::string& name, const BundleEntry& entry, int producer) {
    const int64_t slices = entry.slice ? cost_.slices : 1;
    const int64_t rows = cost_.tokens / slices * std::max<int64_t>(entry.dispatched, 1);
    program_.values.push_back(
        {name, producer, {}, entry.dtype.value_or(cost_.compute), rows, entry.width, slices});
    return static_cast<int>(program_.values.size()) - 1;
  }

  int take(const BlockSpec& block, const BundleEntry& entry) const {
    const auto found = current_.find(entry.name);
    if (found == current_.end())
      throw UsageError(
          format("block {} takes the value {}, which no block before it makes", block.name, entry.name));
    if (found->second.entry != entry)
      throw UsageError(format("block {} takes the value {} with width {}{}, but it has width {}{}",
                              block.name, entry.name, entry.width, entry.slice ? " in slices" : "",
                              found->second.entry.width, found->second.entry.slice ? " in slices" : ""));
    return found->second.value;
  }

  StepProgram& program_;
  const CostContext& cost_;
  std::map<std::string, Named> current_;  // of each name, the last value
  std::set<std::ptrdiff_t> sent_;
};

/// An embedding reads only the weights that it multiplies by: those of an adapter.
bool reads_weights_in_backward(const BlockSpec& block) {
  if (block.kind != BlockKind::embedding) return true;
  return !block.uses_autograd() && std::ranges::any_of(block.list.calls, [](const Call& call) {
    return call.kind->rule != TypeRule::lookup && !call.weights.empty();
  });
}

}  // namespace

StepProgram write_base_program(const ModelSpec& model, const RankLayout& layout, const StepOptions& options) {
  check_model(model, options.pipeline);
  if (options.micro_batches < 1)
    throw UsageError(format("a step needs at least one micro-batch, not {}", options.micro_batches));
  check_size(model, options.micro_batches);
  if (options.kind == ProgramKind::train && layout.pipeline_group < 0) require_trained(model);
  StepProgram program;
  program.kind = options.kind;
  program.rank = layout.id.rank;
  program.micro_batches = options.micro_batches;
  if (options.kind == ProgramKind::train) program.ahead = model.ahead;
  program.groups = layout.groups;
  add_units(program, model, layout, options);
  for (const BlockSpec& block : model.blocks) {
    ProgramBlock& added = program.blocks.emplace_back();
    added.name = block.name;
    added.units = block.units;
    added.stage = block.stage;
    added.loss_weight = block.loss_weight;
    added.ahead = block.ahead;
    added.weights_in_backward = reads_weights_in_backward(block);
    const auto exchanged = block.exchanged_axes();
    const auto set_group = [&](BlockAxis axis, int group) {
      if (exchanged.at(static_cast<std::size_t>(axis))) added.group(axis) = group;
    };
    set_group(BlockAxis::tensor, layout.tensor_group);
    if (options.kind == ProgramKind::generate) continue;  // has whole rows on every rank
    set_group(BlockAxis::context, layout.keys_group);
    set_group(BlockAxis::heads, layout.heads_group);
  }
  ValueWriter(program, options.cost).add(model);
  mark_trained_only(program);
  if (options.kind == ProgramKind::train)
    write_training(program, layout, options);
  else
    write_forward_only(program, layout, options);
  return program;
}

}  // namespace stepforge
