// SPDX-License-Identifier: Apache-2.0
// The specification of the model of exact_model.h.
#pragma once

#include <string>
#include <vector>

#include "stepforge/catalog/tensor_plan.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/context_parallel.h"
#include "stepforge/modelspec/expert_parallel.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The layers of an exact model, unless a pipeline of many stages needs more.
inline constexpr int kExactLayers = 3;
inline constexpr int64_t kExactVocabulary = 257;  ///< that of the bytes tokenizer

/// Models in odd sizes (widths 37 and 53, vocabulary 257).
enum class ExactModel {
  plain,    ///< every block has its own unit
  shared,   ///< tied embeddings, a frozen and a trained unit in each layer
  adapted,  ///< plain, with adapters of several ranks in all matrices of layers, and trained norms
  graph,    ///< plain, but every second layer and a second head take what the embedding made too
  experts,  ///< plain, but with 6 experts in each layer, of which a token takes 2, and one that all take
  biased,   ///< experts, with biases, whose matrices are one tensor
  mtp,  ///< plain, with a layer after the head that predicts the token after the next one, by the weights of the head
  mtp_experts  ///< the same with the layers of `experts`
};

/// Whether its layers have experts.
constexpr bool has_experts(ExactModel model) {
  return model == ExactModel::experts || model == ExactModel::biased || model == ExactModel::mtp_experts;
}

constexpr bool has_mtp(ExactModel model) {
  return model == ExactModel::mtp || model == ExactModel::mtp_experts;
}

/// Adapters of several ranks, whose scales are powers of two, in all matrices of layers but those of experts, and in what `more` names
/// as adapter.targets does; and trained norms.
AdapterConfig exact_adapters(ExactModel model, const std::vector<std::string>& more = {});

/// model_spec() of such a model: its layers, and what parallelism adds to them, are those of the families. The number of layers, the
/// kind of head and adapters are those of `job`.
ModelSpec exact_spec(ExactModel model, const Config& job, const TensorParallel& tensor = {},
                     const ContextParallel& context = {}, const TensorPlan& plan = {},
                     const ExpertParallel& experts = {});

}  // namespace stepforge
