// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_budget.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

/// The index of `name` among the blocks, regions or calls (`what`) that can be recomputed. Throws UsageError if there is none.
std::size_t find_name(const std::string& what, const std::string& name,
                      const std::vector<std::string>& known) {
  const auto found = std::ranges::find(known, name);
  if (found != known.end()) return static_cast<std::size_t>(found - known.begin());
  const std::string guess = did_you_mean(name, known);
  throw UsageError(format("recomputation of {} \"{}\": the model has no such {}{}; it has {}", what, name,
                          what, guess.empty() ? "" : format(" (did you mean \"{}\"?)", guess),
                          known.empty() ? "none" : join(known, ", ")));
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

using Parts = std::vector<std::vector<std::string>>;

/// Of each block but heads the names that `parts_of(block)` chooses. Throws UsageError unless `names` are among those that
/// `names_of` gives for some block.
template <typename NamesOf, typename PartsOf>
Parts named_parts(const ModelSpec& model, const std::string& what, const std::vector<std::string>& names,
                  const NamesOf& names_of, const PartsOf& parts_of) {
  Parts parts(model.blocks.size());
  std::vector<std::string> known;
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockSpec& block = model.blocks[b];
    if (block.kind == BlockKind::head) continue;
    for (std::string& name : names_of(block))
      if (std::ranges::find(known, name) == known.end()) known.push_back(std::move(name));
    parts[b] = parts_of(block);
  }
  for (const std::string& name : names) find_name(what, name, known);
  return parts;
}

Parts parts_of_regions(const ModelSpec& model, const std::vector<std::string>& names) {
  return named_parts(model, "region", names, region_names, [&](const BlockSpec& block) {
    std::vector<std::string> chosen = region_names(block);
    std::erase_if(chosen, [&](const std::string& name) { return std::ranges::count(names, name) == 0; });
    return chosen;
  });
}

Parts parts_within(const ModelSpec& model, double budget, const CostContext& context) {
  Parts parts(model.blocks.size());
  for (std::size_t b = 0; b < model.blocks.size(); ++b)
    if (model.blocks[b].layer >= 0 && model.blocks[b].kind != BlockKind::head)
      parts[b] = recomputation_within(model.blocks[b], context, budget).recomputed;
  return parts;
}

}  // namespace

std::vector<bool> recomputed_blocks(const ModelSpec& model, const RecomputePolicy& policy) {
  if (policy.mode == RecomputeMode::blocks) return named_blocks(model, policy.blocks);
  std::vector<bool> chosen(model.blocks.size(), false);
  if (policy.mode != RecomputeMode::full && policy.mode != RecomputeMode::every_n) return chosen;
  const int every = policy.mode == RecomputeMode::full ? 1 : policy.n;
  if (every < 1)
    throw UsageError(format("recomputation of every n-th block: n must be at least 1, not {}", every));
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockSpec& block = model.blocks[b];
    chosen[b] = block.layer >= 0 && block.layer % every == 0 && keeps_something(block);
  }
  return chosen;
}

std::vector<std::vector<std::string>> recomputed_parts(const ModelSpec& model, const RecomputePolicy& policy,
                                                       const CostContext& context) {
  if (policy.mode == RecomputeMode::regions) return parts_of_regions(model, policy.regions);
  if (policy.mode == RecomputeMode::budget) return parts_within(model, policy.budget, context);
  if (policy.mode != RecomputeMode::calls) return Parts(model.blocks.size());
  return named_parts(model, "call", policy.calls, call_names,
                     [&](const BlockSpec& block) { return calls_named(block, policy.calls); });
}

void recompute_pass(StepProgram& program, const ModelSpec& model, const RecomputePolicy& policy,
                    const CostContext& context) {
  Parts parts = recomputed_parts(model, policy, context);
  for (std::size_t b = 0; b < parts.size(); ++b) program.blocks[b].recomputed_regions = std::move(parts[b]);
  recompute_blocks(program, recomputed_blocks(model, policy));
}

}  // namespace stepforge
