// SPDX-License-Identifier: Apache-2.0
// The parameters of the adapter of one matrix, or of the matrices of experts that one parameter holds. Not public.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/catalog/adapter_choice.h"
#include "stepforge/modelspec/calls/experts.h"
#include "stepforge/modelspec/calls/low_rank.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The adapter of one parameter.
struct Adapter {
  ParameterSpec
      a;  ///< [ranks of all parts, columns of W]; of experts one below the other; of an embedding its transpose
  std::vector<ParameterSpec> b;           ///< of each part [rows of its tensor, rank]; likewise
  std::vector<ParameterSpec> magnitudes;  ///< of DoRA, of each part [rows of its tensor]
  LowRankAttributes low_rank;
  Division division = Division::whole;  ///< of W
  bool sums = true;       ///< whether blocks sum gradients of weights that are whole on every rank
  bool shared_a = false;  ///< of experts: A is one matrix, like that of a matrix that is no expert's
  std::vector<CopySpec> copies = {};  ///< of such an A under the names of the other experts
};

/// By the name of the parameter, or kAdaptedHead.
using Adapters = std::map<std::string, Adapter>;

/// The output projection, also if it is tied to an embedding.
inline constexpr const char* kAdaptedHead = "head.weight";

/// The initial values of A: those of PEFT. `columns`: of the whole matrix. Those of pissa are loaded.
Initializer initial_a(AdapterInit init, int64_t rank, int64_t columns);

/// Of the tensors of `base`, a parameter of `unit`, that are chosen; nothing if none is.
std::optional<Adapter> adapter_of(const ParameterSpec& base, const UnitSpec& unit, AdapterChoice& choice,
                                  const AdapterConfig& adapter);

/// The same of the table of an embedding, if adapter.targets names it: W + scale (B A)^T. A starts at zero and B as the table of
/// an embedding would, as in PEFT. Throws UsageError for an adapter that it cannot have.
std::optional<Adapter> embedding_adapter_of(const ParameterSpec& table, const UnitSpec& unit,
                                            AdapterChoice& choice, const AdapterConfig& adapter);

/// The same of the output projection, the module lm_head, which may be tied to an embedding: `weight` is then the table, and has
/// one adapter as such and another one as the head.
std::optional<Adapter> head_adapter_of(const ParameterSpec& weight, const UnitSpec& unit,
                                       AdapterChoice& choice, const AdapterConfig& adapter);

/// The same of the matrices of experts, which a call with these attributes multiplies by. Each expert has an adapter of its own,
/// which is where the expert is; with ExpertAdapters::shared_a only its B is, and A is whole on every rank. Throws UsageError
/// naming a module that is chosen but cannot have one, or if only some experts are chosen, or with different ranks.
std::optional<Adapter> expert_adapter_of(const ParameterSpec& base, const ExpertsAttributes& experts,
                                         AdapterChoice& choice, const AdapterConfig& adapter);

}  // namespace stepforge
