// SPDX-License-Identifier: Apache-2.0
// A fault planted in sound programs, and the error that the checker must report.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "tests/step/programs.h"

namespace stepforge::testing {

inline RankOptions two_micro_batches() {
  RankOptions options = small_options(2);
  options.set_gathers({DType::bf16, ReshardMode::always, 1});
  return options;
}

/// Two shards.
inline Programs fsdp(const RankOptions& options) {
  return programs_of(small_model(), 2, 1, options);
}

/// Two shards in two replicas: shard groups {0, 1} and {2, 3}.
inline Programs hsdp(const RankOptions& options) {
  return programs_of(small_model(), 2, 2, options);
}

using Damage = std::function<void(StepProgram&)>;

inline constexpr int kEveryRank = -1;

struct Fault {
  std::string name;
  Programs (*programs)(const RankOptions&);
  RankOptions options;
  int damaged;  ///< rank, or kEveryRank
  Damage damage;
  int found_at;  ///< rank
  std::string operation;
  std::string reason;
};

inline void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

inline constexpr int kShard = 0;  // indices of groups
inline constexpr int kReplica = 1;

inline Operation& at(StepProgram& program, const Match& match) {
  return program.operations[find(program, match)];
}

/// The second operation that matches.
inline std::size_t second(const StepProgram& program, const Match& match) {
  return find(program, match, find(program, match) + 1);
}

inline void erase_both(StepProgram& program, OpKind start, OpKind wait, int unit) {
  erase(program, find(program, {wait, unit}));
  erase(program, find(program, {start, unit}));
}

/// The programs are accepted; with the fault they are refused for its reason, also by check_symmetric() if
/// all ranks have the fault.
inline void expect_found(const Fault& fault) {
  Programs programs = fault.programs(fault.options);
  ASSERT_NO_THROW(check_programs(programs));
  for (StepProgram& program : programs)
    if (fault.damaged == kEveryRank || fault.damaged == program.rank) fault.damage(program);
  expect_refused(programs, fault.found_at, fault.operation, fault.reason);
  if (fault.damaged == kEveryRank) {
    EXPECT_THROW(
        check_symmetric(programs[0], static_cast<int>(programs.size()),
                        [&](int rank) { return views_of(programs[static_cast<std::size_t>(rank)].groups); }),
        ProgramError);
  }
}

inline int group_of(const StepProgram& program, std::string_view name) {
  return find_group(program.groups, name);
}

}  // namespace stepforge::testing
