// SPDX-License-Identifier: Apache-2.0
// The specification of a decoder: embedding, L layers of attention and MLP or experts, norm and head.
#pragma once

#include "stepforge/catalog/layers.h"
#include "stepforge/catalog/tensor_plan.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/expert_parallel.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// Sizes of attention.
AttentionDims attention_dims(const ModelConfig& model);

/// Units and blocks in forward order: "embedding", "layers.0" ..., "head". `loss_chunk` is the number of
/// tokens whose logits exist at once; 0 for automatic_loss_chunk(). With tensor parallelism, this rank's part
/// of the model, as `plan` says: kv_heads and attention_width are its own, vocab_size is that of the model. Throws UsageError
/// if the family is unknown or does not have a setting of `model`, model.vocab_size is not known yet, the model has more than 1e14 parameters or
/// 100,000 layers, or a degree does not fit n_heads and n_kv_heads or leaves a rank without hidden units or
/// tokens.
/// `experts`: this rank's experts of each layer; the degree must divide model.n_experts.
ModelSpec model_spec(const ModelConfig& model, int64_t loss_chunk = 0, const TensorParallel& tensor = {},
                     const ContextParallel& context = {}, const TensorPlan& plan = {},
                     const ExpertParallel& experts = {});

}  // namespace stepforge
