// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

bool trains(const ModelSpec& model, const BlockSpec& block) {
  return std::any_of(block.units.begin(), block.units.end(),
                     [&](int unit) { return model.units[static_cast<std::size_t>(unit)].trainable; });
}

/// The blocks below it need no gradients.
int lowest_trained_block(const ModelSpec& model) {
  const auto found = std::find_if(model.blocks.begin(), model.blocks.end(),
                                  [&](const BlockSpec& block) { return trains(model, block); });
  if (found == model.blocks.end()) {
    throw UsageError(
        "every unit of the model is frozen: there is nothing to train; make at least one trainable");
  }
  return static_cast<int>(found - model.blocks.begin());
}

class Writer {
 public:
  explicit Writer(StepProgram& program) : program_(program) {}

  void add(OpKind kind, int block, int micro_batch, bool keep_graph = false) {
    Operation operation;
    operation.kind = kind;
    operation.block = block;
    operation.micro_batch = micro_batch;
    operation.keep_graph = keep_graph;
    program_.operations.push_back(std::move(operation));
  }
  void add(OpKind kind) { add(kind, -1, -1); }
  void add_collective(OpKind kind, int group) {
    add(kind);
    program_.operations.back().group = group;
  }
  template <typename Chosen>
  void add_for_units(OpKind kind, Chosen chosen) {
    for (std::size_t u = 0; u < program_.units.size(); ++u) {
      if (program_.units[u].trainable && chosen(program_.units[u])) {
        add(kind);
        program_.operations.back().unit = static_cast<int>(u);
      }
    }
  }

 private:
  StepProgram& program_;
};

/// The index of the group of this name, -1 if there is none.
int find_group(const StepProgram& program, std::string_view name) {
  const auto found = std::find_if(program.groups.begin(), program.groups.end(),
                                  [&](const ProgramGroup& group) { return group.name == name; });
  return found == program.groups.end() ? -1 : static_cast<int>(found - program.groups.begin());
}

void write_training(StepProgram& program, const ModelSpec& model) {
  Writer writer(program);
  const int head = static_cast<int>(program.blocks.size()) - 1;
  const int lowest = lowest_trained_block(model);
  const int shard = find_group(program, kShardGroup);
  const int loss = find_group(program, kLossGroup);
  if (loss >= 0) writer.add_collective(OpKind::count_labels, loss);
  // reduce_pass starts the gradients that are reduced.
  writer.add_for_units(OpKind::start_gradient, [](const ProgramUnit& unit) { return !unit.reduces(); });
  for (int m = 0; m < program.micro_batches; ++m) {
    writer.add(OpKind::load_batch, -1, m);
    for (int b = 0; b < head; ++b) writer.add(OpKind::forward, b, m, b >= lowest);
    writer.add(OpKind::loss_forward_backward, head, m);
    for (int b = head - 1; b >= lowest; --b) writer.add(OpKind::backward, b, m);
  }
  if (loss >= 0) writer.add_collective(OpKind::reduce_loss, loss);
  writer.add_collective(OpKind::gradient_norm, shard);
  writer.add(OpKind::check_finite);
  writer.add_for_units(OpKind::update, [](const ProgramUnit&) { return true; });
}

void write_forward_only(StepProgram& program, OpKind last) {
  Writer writer(program);
  const int head = static_cast<int>(program.blocks.size()) - 1;
  for (int m = 0; m < program.micro_batches; ++m) {
    writer.add(OpKind::load_batch, -1, m);
    for (int b = 0; b < head; ++b) writer.add(OpKind::forward, b, m);
    writer.add(last, head, m);
  }
}

void check_model(const ModelSpec& model) {
  if (model.blocks.size() < 2 || model.blocks.front().kind != BlockKind::embedding ||
      model.blocks.back().kind != BlockKind::head) {
    throw UsageError(format(
        "model family \"{}\": its blocks must begin with an embedding and end with a head", model.family));
  }
  for (const BlockSpec& block : model.blocks) {
    for (const int unit : block.units) {
      if (unit < 0 || static_cast<std::size_t>(unit) >= model.units.size()) {
        throw UsageError(format("block {} uses unit {}, but the model has {} units", block.name, unit,
                                model.units.size()));
      }
    }
  }
}

/// A list that would not fit into memory is refused before it is written.
void check_size(const ModelSpec& model, int micro_batches) {
  constexpr int64_t kMostComputations = int64_t{1} << 18;
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  if (micro_batches > kMostComputations / blocks) {
    throw UsageError(format(
        "a step of {} micro-batches on each rank, each through {} blocks, makes a program of more than {} "
        "forwards, the most that one may have; use at most {} micro-batches: larger ones "
        "(training.local_batch_size), fewer rows (training.global_batch_size) or more ranks",
        with_thousands(micro_batches), with_thousands(blocks), with_thousands(kMostComputations),
        with_thousands(kMostComputations / blocks)));
  }
}

}  // namespace

StepProgram write_base_program(const ModelSpec& model, const StepOptions& options) {
  check_model(model);
  if (options.micro_batches < 1)
    throw UsageError(format("a step needs at least one micro-batch, not {}", options.micro_batches));
  check_size(model, options.micro_batches);
  StepProgram program;
  program.kind = options.kind;
  program.rank = options.data_parallel.rank;
  program.micro_batches = options.micro_batches;
  program.groups = groups_of(options.data_parallel);
  const int shard = find_group(program, kShardGroup);
  for (const UnitSpec& unit : model.units) {
    program.units.push_back(
        {.name = unit.name,
         .trainable = unit.trainable,
         .resident = options.gather.dtype == DType::f32 && shard < 0 && !options.offload.state,
         .shard_group = shard,
         .replica_group = find_group(program, kReplicaGroup),
         .offloaded = options.offload.state});
  }
  for (const BlockSpec& block : model.blocks) {
    ProgramBlock& added = program.blocks.emplace_back();
    added.name = block.name;
    added.units = block.units;
    added.weights_in_backward = block.kind != BlockKind::embedding;
  }
  program.blocks.front().first = true;
  program.blocks.back().last = true;
  switch (options.kind) {
    case ProgramKind::train:
      write_training(program, model);
      break;
    case ProgramKind::evaluate:
      write_forward_only(program, OpKind::loss);
      break;
    case ProgramKind::generate:
      write_forward_only(program, OpKind::logits);
      break;
  }
  return program;
}

}  // namespace stepforge
