// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// The index of `name` among the blocks or regions that can be recomputed. Throws UsageError if there is
/// none.
std::size_t find_name(const std::string& block_or_region, const std::string& name,
                      const std::vector<std::string>& known) {
  const auto found = std::ranges::find(known, name);
  if (found != known.end()) return static_cast<std::size_t>(found - known.begin());
  const std::string guess = did_you_mean(name, known);
  throw UsageError(format("recomputation of {} \"{}\": the model has no such {}{}; it has {}",
                          block_or_region, name, block_or_region,
                          guess.empty() ? "" : format(" (did you mean \"{}\"?)", guess), join(known, ", ")));
}

/// A block that keeps nothing for its backward gains nothing.
bool keeps_something(const BlockSpec& block) {
  return block_cost(block, {.tokens = 1, .document_length = 1}).saved_bytes > 0;
}

/// Whether it is another part of the layer that `named` begins.
bool continues(const BlockSpec& block, const BlockSpec& named) {
  return named.part == LayerPart::router && block.layer == named.layer && keeps_something(block);
}

std::vector<bool> named_blocks(const ModelSpec& model, const std::vector<std::string>& names) {
  std::vector<std::string> known;
  std::vector<std::size_t> index;
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    if (model.blocks[b].kind == BlockKind::head) continue;
    known.push_back(model.blocks[b].name);
    index.push_back(b);
  }
  std::vector<bool> chosen(model.blocks.size(), false);
  for (const std::string& name : names) {
    const BlockSpec& named = model.blocks[index[find_name("block", name, known)]];
    for (std::size_t b = 0; b < model.blocks.size(); ++b)
      chosen[b] = chosen[b] || model.blocks[b].name == named.name || continues(model.blocks[b], named);
  }
  return chosen;
}

void recompute_blocks(StepProgram& program, const std::vector<bool>& chosen) {
  std::vector<Insertion> insertions;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    Operation& operation = program.operations[i];
    if (operation.block < 0 || !element(chosen, operation.block)) continue;
    if (operation.kind == OpKind::forward) {
      operation.keep_graph = false;
    } else if (operation.kind == OpKind::backward || operation.kind == OpKind::backward_input) {
      Operation& again = insertions.emplace_back(Insertion{i, operation}).operation;
      again.kind = OpKind::recompute;
      again.needs.clear();
      again.keep_graph = true;
      element(program.blocks, operation.block).kept.clear();  // they are made again, too
    }
  }
  insert_operations(program.operations, std::move(insertions));
}

void recompute_regions(StepProgram& program, const ModelSpec& model, const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    if (model.blocks[b].kind == BlockKind::head) continue;
    for (const RegionSpec& region : model.blocks[b].regions) {
      if (std::ranges::find(known, region.name) == known.end()) known.push_back(region.name);
      if (std::ranges::find(names, region.name) != names.end())
        program.blocks[b].recomputed_regions.push_back(region.name);
    }
  }
  for (const std::string& name : names) find_name("region", name, known);
}

}  // namespace

std::vector<bool> recomputed_blocks(const ModelSpec& model, const RecomputePolicy& policy) {
  using Mode = RecomputePolicy::Mode;
  if (policy.mode == Mode::blocks) return named_blocks(model, policy.blocks);
  std::vector<bool> chosen(model.blocks.size(), false);
  if (policy.mode == Mode::none || policy.mode == Mode::regions) return chosen;
  const int every = policy.mode == Mode::full ? 1 : policy.n;
  if (every < 1)
    throw UsageError(format("recomputation of every n-th block: n must be at least 1, not {}", every));
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockSpec& block = model.blocks[b];
    chosen[b] = block.layer >= 0 && block.layer % every == 0 && keeps_something(block);
  }
  return chosen;
}

void recompute_pass(StepProgram& program, const ModelSpec& model, const RecomputePolicy& policy) {
  if (policy.mode == RecomputePolicy::Mode::regions)
    recompute_regions(program, model, policy.regions);
  else
    recompute_blocks(program, recomputed_blocks(model, policy));
}

}  // namespace stepforge
