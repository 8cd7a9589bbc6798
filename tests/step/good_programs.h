// SPDX-License-Identifier: Apache-2.0
// Small sound programs, which tests damage.
#pragma once

#include "tests/step/programs.h"

namespace stepforge::testing {

inline StepProgram plain(int micro_batches = 2, bool ordered = false) {
  RankOptions options = small_options(micro_batches);
  options.ordered = ordered;
  return build_step(small_model(), options);
}

inline StepProgram gathered() {
  RankOptions options = small_options(1);
  options.set_gathers({DType::bf16, ReshardMode::always, 0});
  return build_step(small_model(), options);
}

inline Programs two_ranks() {
  RankOptions options = small_options();
  return sharded(2, 1, 1, options);
}

inline Operation& operation(StepProgram& program, const Match& match) {
  return program.operations[find(program, match)];
}

}  // namespace stepforge::testing
