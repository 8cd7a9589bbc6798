// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/contributions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

bool holds_gradients(Resource resource) {
  return resource == Resource::gradient || resource == Resource::level || resource == Resource::reduced;
}

}  // namespace

Contributions::Contributions(const StepProgram& program, const ProgramEffects& effects)
    : program_(program), effects_(effects), users_(program.units.size()) {
  for (int b = 0; b < std::ssize(program.blocks); ++b)
    for (const int unit : element(program.blocks, b).units) element(users_, unit).push_back(b);
}

std::string Contributions::text(const Contribution& contribution) const {
  return format("block {} on micro-batch {}", element(program_.blocks, contribution.first).name,
                contribution.second);
}

std::string Contributions::apply(const Operation& operation, const std::vector<InstanceEffect>& effects) {
  if (has_trait(operation.kind, kContributes)) {
    contribute(operation);
    return {};
  }
  if (has_trait(operation.kind, kCompletes)) {
    for (int u = 0; u < std::ssize(program_.units); ++u) {
      if (!element(program_.units, u).trainable || (operation.unit >= 0 && operation.unit != u)) continue;
      const int m = operation.micro_batch;
      if (std::string wrong = m < 0 ? incomplete(u) : not_alone(u, m); !wrong.empty()) return wrong;
    }
    return {};
  }
  return operation.unit >= 0 ? flow(operation, effects) : std::string();
}

void Contributions::contribute(const Operation& operation) {
  const Contribution added{operation.block, operation.micro_batch};
  for (const int u : element(program_.blocks, operation.block).units) {
    if (!element(program_.units, u).trainable) continue;
    Contents& all = contents({Resource::gradient, u, 0});
    all.insert(std::ranges::upper_bound(all, added), added);
  }
}

std::string Contributions::flow(const Operation& operation, const std::vector<InstanceEffect>& effects) {
  Contents moved;
  bool moves = false;
  for (const auto& [effect, instance] : effects) {
    if (!holds_gradients(instance.resource) ||
        (effect.access != Access::end && effect.access != Access::lend))
      continue;
    moves = true;
    moved = std::exchange(contents(instance), {});
  }
  if (moves && moved.empty()) return "there is no gradient: nothing has contributed to it";
  for (const auto& [effect, instance] : effects) {
    if (!moves || !holds_gradients(instance.resource)) continue;
    Contents& target = contents(instance);
    if (effect.access == Access::restart) {
      if (operation.accumulate && target.empty()) return "it adds to the gradient of the step before";
      if (!operation.accumulate && !target.empty())
        return format("it overwrites the reduced gradient of {}", text(target.front()));
    } else if (effect.access != Access::make && effect.access != Access::change) {
      continue;
    }
    Contents all;
    std::ranges::merge(target, moved, std::back_inserter(all));
    target = std::move(all);
  }
  return {};
}

std::string Contributions::not_alone(int unit, int micro_batch) {
  Contents leaf;
  for (const int b : element(users_, unit)) leaf.emplace_back(b, micro_batch);
  if (contents({Resource::gradient, unit, 0}) == leaf) return {};
  return format("the gradient is not that of micro-batch {} alone", micro_batch);
}

std::string Contributions::incomplete(int unit) {
  const ProgramUnit& info = element(program_.units, unit);
  const Contents& all = contents({info.reduces() ? Resource::reduced : Resource::gradient, unit, 0});
  if (const auto twice = std::ranges::adjacent_find(all); twice != all.end())
    return format("unit {}: the gradient of {} was added twice", info.name, text(*twice));
  for (const int b : element(users_, unit)) {
    for (int m = 0; m < program_.micro_batches; ++m)
      if (!std::ranges::binary_search(all, Contribution{b, m}))
        return format("unit {}: the gradient of {} is missing", info.name, text({b, m}));
  }
  return {};
}

}  // namespace stepforge
