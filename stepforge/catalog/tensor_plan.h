// SPDX-License-Identifier: Apache-2.0
// The tensor-parallel plan of a family: how each parameter is divided, by name. A user's rules may replace
// parts of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/config/name_pattern.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/modelspec/tensor_parallel.h"

namespace stepforge {

/// Styles are those of torch.distributed.tensor.parallel: colwise divides the outputs of a layer (rows of its
/// weight [out, in]), rowwise its inputs (columns; of an embedding the tokens), replicate nothing.
class TensorPlan {
 public:
  /// The plan of the family alone.
  TensorPlan() = default;
  /// `rules` come first; the first one that matches a name counts. Throws UsageError for a pattern that is not
  /// a regular expression.
  explicit TensorPlan(const std::vector<TensorPlanRule>& rules);

  /// The style of a parameter, by its name in the specification: "layers.3.mlp.down".
  TensorStyle style_of(std::string_view parameter) const;

  /// `tensor` for the layer that these parameters form: whole if they are replicated. Throws UsageError if only
  /// some of them are, or if a style is not the one that the layer can have.
  TensorParallel of_layer(TensorParallel tensor, const std::vector<std::string>& parameters) const;

  /// Throws UsageError for a rule that no parameter of the model follows.
  void check_rules(const ModelSpec& model) const;

 private:
  /// The index of the first rule that matches; -1 if there is none.
  int rule_of(std::string_view parameter) const;

  std::vector<TensorPlanRule> rules_;
  std::vector<NamePattern> patterns_;  ///< of rules_
};

/// "colwise"
std::string_view style_name(TensorStyle style);

}  // namespace stepforge
