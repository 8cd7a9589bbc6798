// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
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
  /// Only if there is such a group.
  void add_over(int group, OpKind kind, int unit = -1) {
    if (group >= 0) add(kind, unit, group);
  }

 private:
  StepProgram& program_;
};

/// The sums over the copies of a unit: one of the whole gradient or, in ordered mode, one of each micro-batch. They come
/// when all contributions have been made: before, ranks would wait for each other in a cycle.
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

/// The first stage starts with an embedding, the last one ends with a head, and no other block is either.
void check_model(const ModelSpec& model, const PipelineOptions& pipeline) {
  const int stages = std::max(1, pipeline.schedule.stages());
  const auto refuse = [&] {
    throw UsageError(format(
        "model family \"{}\": its blocks must start with an embedding and end with a head", model.family));
  };
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockSpec& block = model.blocks[b];
    const bool first = block.stage == 0 && b == 0;
    const bool last = block.stage + 1 == stages && b + 1 == model.blocks.size();
    if (first != (block.kind == BlockKind::embedding) || last != (block.kind == BlockKind::head)) refuse();
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
void add_units(StepProgram& program, const ModelSpec& model, const RankLayout& layout) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const UnitLayout& unit = layout.units.at(u);
    program.units.push_back({.name = model.units[u].name,
                             .trainable = model.units[u].trainable,
                             .resident = unit.gather == DType::f32 && unit.shard_group < 0 && !unit.offloaded,
                             .shard_group = unit.shard_group,
                             .replica_group = unit.replica_group(),
                             .tie_group = unit.tie_group,
                             .offloaded = unit.offloaded});
  }
}

/// The edges between the blocks of this rank, and those to other stages.
void add_values(StepProgram& program, const ModelSpec& model, const CostContext& cost) {
  const auto add = [&](const std::string& name, int producer, int consumer,
                       const std::vector<BundleEntry>& entries) {
    ProgramValue& value =
        program.values.emplace_back(ProgramValue{name, producer, consumer, cost.compute, {}});
    for (const BundleEntry& entry : entries) {
      const int64_t slices = entry.slice ? cost.slices : 1;
      value.parts.push_back({cost.tokens / slices, entry.width, slices});
    }
    return static_cast<int>(program.values.size()) - 1;
  };
  for (int b = 0; b < std::ssize(model.blocks); ++b) {
    const BlockSpec& block = element(model.blocks, b);
    ProgramBlock& added = element(program.blocks, b);
    if (b > 0 && block.stage - element(model.blocks, b - 1).stage <= 1) {
      added.input = element(program.blocks, b - 1).output;
      element(program.values, added.input).consumer = b;
    } else if (block.kind != BlockKind::embedding) {
      added.input = add("input of " + block.name, -1, b, block.inputs);
    }
    if (block.kind != BlockKind::head) added.output = add(block.name, b, -1, block.outputs);
  }
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
  program.groups = layout.groups;
  add_units(program, model, layout);
  for (const BlockSpec& block : model.blocks) {
    ProgramBlock& added = program.blocks.emplace_back();
    added.name = block.name;
    added.units = block.units;
    added.stage = block.stage;
    added.weights_in_backward = block.kind != BlockKind::embedding;
    if (block.exchanges_over(BlockAxis::tensor)) added.group(BlockAxis::tensor) = layout.tensor_group;
    if (options.kind == ProgramKind::generate) continue;  // of whole rows, on every rank
    if (block.exchanges_over(BlockAxis::context)) added.group(BlockAxis::context) = layout.keys_group;
    if (block.exchanges_over(BlockAxis::heads)) added.group(BlockAxis::heads) = layout.heads_group;
  }
  add_values(program, model, options.cost);
  if (options.kind == ProgramKind::train)
    write_training(program, layout, options);
  else
    write_forward_only(program, layout, options);
  return program;
}

}  // namespace stepforge
