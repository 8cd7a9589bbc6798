// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/checker.h"

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"
#include "stepforge/step/memory.h"

namespace stepforge {

namespace {

std::string describe(const StepProgram& program, std::size_t operation) {
  if (operation >= program.operations.size()) return "end of the program";
  return format("operation {} ({})", operation, operation_text(program, program.operations[operation]));
}

}  // namespace

ProgramError::ProgramError(const StepProgram& program, std::size_t operation, const std::string& reason)
    : Error(format("rank {}, {}: {}", program.rank, describe(program, operation), reason)),
      rank_(program.rank),
      operation_(operation) {}

std::string ListWalk::group_text(int group) const {
  return group < 0 ? "no group" : group_key(element(program_.groups, group));
}

std::string ListWalk::text(int operation) const {
  return describe(program_, static_cast<std::size_t>(operation));
}

int64_t check_one(const StepProgram& program) {
  check_resources(program);
  return account(program).peak_bytes;
}

CheckResult check_programs(std::span<const StepProgram> all_ranks) {
  for (std::size_t r = 0; r < all_ranks.size(); ++r) {
    if (all_ranks[r].rank != static_cast<int>(r)) {
      throw ProgramError(all_ranks[r], all_ranks[r].operations.size(),
                         format("it is program {} of the list, so its rank must be {}", r, r));
    }
    check_structure(all_ranks[r], all_ranks.size());
  }
  CheckResult result;
  for (const StepProgram& program : all_ranks) result.peak_bytes.push_back(check_one(program));
  check_messages(all_ranks);
  check_collectives(all_ranks);
  check_waits(all_ranks);
  return result;
}

}  // namespace stepforge
