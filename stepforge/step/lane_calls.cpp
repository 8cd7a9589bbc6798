// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/lane_calls.h"

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

std::string call_text(const StepProgram& program, const Operation& operation) {
  std::string text(op_name(operation.kind));
  if (operation.block >= 0) text += " " + element(program.blocks, operation.block).name;
  if (operation.unit >= 0) text += " " + element(program.units, operation.unit).name;
  if (operation.micro_batch >= 0) text += format(" m{}", operation.micro_batch);
  if (operation.level >= 0) text += format(" level {}", operation.level);
  return text;
}

}  // namespace

std::vector<std::string> lane_calls(const StepProgram& program, const GroupLane& lane) {
  std::vector<std::string> calls;
  for (const Operation& operation : program.operations) {
    if (operation.lane != lane.lane) continue;
    if (has_trait(operation.kind, kHasPeer)) {
      if (operation.group == lane.group)
        calls.push_back(
            format("m{} tag {}, {} bytes", operation.micro_batch, operation.tag, operation.bytes));
      continue;
    }
    for (const GroupExchange& collective : collectives_of(operation))
      if (collective.group == lane.group) calls.push_back(call_text(program, operation));
  }
  return calls;
}

}  // namespace stepforge
