// SPDX-License-Identifier: Apache-2.0
// The calls of adapters, as a pass over the list of a block. Not public.
#pragma once

#include "stepforge/catalog/adapter_parameters.h"
#include "stepforge/modelspec/call_list.h"

namespace stepforge {

/// Whether the call multiplies by a matrix, or matrices of experts, that can have an adapter: its first weight.
bool multiplies(const Call& call);

/// The name of the adapter that a call may have beside it (Adapters), or "".
std::string adapted_name(const Call& call);

/// The list with the calls of `adapters` beside those that multiply by their matrices, or look up in them. `dropout`: of the
/// inputs of A, which those of an embedding do not have.
CallList write_adapters(const CallList& list, const Adapters& adapters, bool dropout);

}  // namespace stepforge
