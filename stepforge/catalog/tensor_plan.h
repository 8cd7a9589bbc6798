// SPDX-License-Identifier: Apache-2.0
// How tensor parallelism divides each parameter, by name. Rules of a user or a plug-in may replace parts of the program's
// own plan.
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
  /// The program's plan alone.
  TensorPlan() = default;
  /// `rules` come first, then `further`; the first one that matches a name counts. Throws UsageError for a pattern that is
  /// not a regular expression. Messages call `further` by its name.
  explicit TensorPlan(const std::vector<TensorPlanRule>& rules,
                      const std::vector<TensorPlanRule>& further = {}, std::string further_name = {});

  /// The style of a parameter, by its name in the specification: "layers.3.mlp.down".
  TensorStyle style_of(std::string_view parameter) const;

  /// `tensor` for the layer that these parameters form: whole if they are replicated. Throws UsageError if only
  /// some of them are, or if a style is not the one that the layer can have.
  TensorParallel of_layer(TensorParallel tensor, const std::vector<std::string>& parameters) const;

  /// Throws UsageError for a rule that no parameter of the model follows, unless it is one of `further`.
  void check_rules(const ModelSpec& model) const;

 private:
  /// The index of the first rule that matches; -1 if there is none.
  int rule_of(std::string_view parameter) const;
  /// Who gave the rule, for messages; -1 stands for the user.
  const std::string& source_of(int rule) const;

  std::vector<TensorPlanRule> rules_;
  std::vector<NamePattern> patterns_;  ///< of rules_
  std::size_t first_further_ = 0;
  std::string names_[2] = {"parallelism.tensor_parallel_plan", {}};
};

/// "colwise"
std::string_view style_name(TensorStyle style);

}  // namespace stepforge
