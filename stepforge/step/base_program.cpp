// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// The blocks below it need no gradients.
int lowest_trained_block(const ModelSpec& model) {
  const auto is_trained = [&](const BlockSpec& block) {
    return std::ranges::any_of(block.units, [&](int unit) { return element(model.units, unit).trainable; });
  };
  const auto found = std::ranges::find_if(model.blocks, is_trained);
  if (found == model.blocks.end())
    throw UsageError("every unit of the model is frozen: there is nothing to train; unfreeze at least one");
  return static_cast<int>(found - model.blocks.begin());
}

/// Appends operations to a program.
class Writer {
 public:
  explicit Writer(StepProgram& program) : program_(program) {}

  Operation& add(OpKind kind, int unit = -1, int group = -1) {
    return program_.operations.emplace_back(make_operation(kind, unit, group));
  }
  /// Only if there is such a group.
  void add_over(int group, OpKind kind) {
    if (group >= 0) add(kind, -1, group);
  }
  void add_block(OpKind kind, int block, int micro_batch, bool keep_graph = false) {
    Operation& operation = add(kind);
    operation.block = block;
    operation.micro_batch = micro_batch;
    operation.keep_graph = keep_graph;
  }

 private:
  StepProgram& program_;
};

void write_training(StepProgram& program, const ModelSpec& model) {
  Writer writer(program);
  const int head = static_cast<int>(program.blocks.size()) - 1;
  const int lowest = lowest_trained_block(model);
  writer.add_over(label_group(program.groups), OpKind::count_labels);
  for (int u = 0; u < std::ssize(program.units); ++u) {
    const ProgramUnit& unit = element(program.units, u);
    if (unit.trainable && !unit.reduces()) writer.add(OpKind::start_gradient, u);  // others: reduce_pass
  }
  for (int m = 0; m < program.micro_batches; ++m) {
    writer.add_block(OpKind::load_batch, -1, m);
    for (int b = 0; b < head; ++b) writer.add_block(OpKind::forward, b, m, b >= lowest);
    writer.add_block(OpKind::loss_forward_backward, head, m);
    for (int b = head - 1; b >= lowest; --b) writer.add_block(OpKind::backward, b, m);
  }
  writer.add_over(find_group(program.groups, kLossGroup), OpKind::reduce_loss);
  writer.add(OpKind::gradient_norm, -1, find_group(program.groups, kShardGroup));
  writer.add_over(find_group(program.groups, kTensorGroup), OpKind::join_norm);
  writer.add(OpKind::check_finite);
  for (int u = 0; u < std::ssize(program.units); ++u)
    if (element(program.units, u).trainable) writer.add(OpKind::update, u);
}

void write_forward_only(StepProgram& program) {
  Writer writer(program);
  const int head = static_cast<int>(program.blocks.size()) - 1;
  const bool with_loss = program.kind == ProgramKind::evaluate;
  if (with_loss) writer.add_over(label_group(program.groups), OpKind::count_labels);
  for (int m = 0; m < program.micro_batches; ++m) {
    writer.add_block(OpKind::load_batch, -1, m);
    for (int b = 0; b < head; ++b) writer.add_block(OpKind::forward, b, m);
    writer.add_block(with_loss ? OpKind::loss : OpKind::logits, head, m);
  }
  if (with_loss) writer.add_over(find_group(program.groups, kLossGroup), OpKind::reduce_loss);
}

void check_model(const ModelSpec& model) {
  if (model.blocks.size() < 2 || model.blocks.front().kind != BlockKind::embedding ||
      model.blocks.back().kind != BlockKind::head) {
    throw UsageError(format(
        "model family \"{}\": its blocks must start with an embedding and end with a head", model.family));
  }
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
                             .offloaded = unit.offloaded});
  }
}

}  // namespace

StepProgram write_base_program(const ModelSpec& model, const RankLayout& layout, const StepOptions& options) {
  check_model(model);
  if (options.micro_batches < 1)
    throw UsageError(format("a step needs at least one micro-batch, not {}", options.micro_batches));
  check_size(model, options.micro_batches);
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
    added.weights_in_backward = block.kind != BlockKind::embedding;
    if (block.exchanges_over(BlockAxis::tensor)) added.group(BlockAxis::tensor) = layout.tensor_group;
    if (options.kind == ProgramKind::generate) continue;  // of whole rows, on every rank
    if (block.exchanges_over(BlockAxis::context)) added.group(BlockAxis::context) = layout.keys_group;
    if (block.exchanges_over(BlockAxis::heads)) added.group(BlockAxis::heads) = layout.heads_group;
  }
  program.blocks.front().first = true;
  program.blocks.back().last = true;
  if (options.kind == ProgramKind::train)
    write_training(program, model);
  else
    write_forward_only(program);
  return program;
}

}  // namespace stepforge
