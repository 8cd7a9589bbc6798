// SPDX-License-Identifier: Apache-2.0
// Bytes and workspace of an exchange of rows with the ranks of experts, by DispatchMethod.
#pragma once

#include <cstdint>
#include <string_view>

#include "stepforge/step/program.h"

namespace stepforge {

struct ExchangeCost {
  int64_t bytes = 0;  ///< of the whole messages: of all rows that a rank sends, or of the tokens of all ranks
  int64_t workspace = 0;
};

/// `operation` has the trait kDispatches, and its block a dispatch.
ExchangeCost exchange_cost(const StepProgram& program, const Operation& operation);

/// The memory that records where the rows of a block's dispatch have gone.
int64_t routes_bytes(const StepProgram& program, const ProgramBlock& block);

/// The collective that moves the rows of an exchange, after a dispatch has told the sizes: "all_gather". "" for operations
/// without the trait kDispatches, whose kind says what they are.
std::string_view collective_of_exchange(const StepProgram& program, const Operation& operation);

}  // namespace stepforge
