// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/lookup.h"

#include "stepforge/kernels/embedding.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/vocabulary_part.h"

namespace stepforge {

static_assert(kNoToken == kNoEmbedding);

namespace {

const at::Tensor& tokens_of(const CallRun& run) {
  const int64_t ahead = attributes_of<LookupAttributes>(run.call).ahead;
  const BatchTensors& batch = *run.context.batch;
  return ahead == 0 ? batch.tokens : batch.tokens_ahead.at(static_cast<std::size_t>(ahead - 1));
}

/// transformers rounds the factor to the type of the activations.
double factor_of(const CallRun& run) {
  const double factor = attributes_of<LookupAttributes>(run.call).factor;
  if (run.weight(0).value().scalar_type() != at::kBFloat16) return factor;
  return static_cast<float>(c10::BFloat16(static_cast<float>(factor)));
}

void lookup(const CallRun& run) {
  embedding_forward(tokens_of(run), run.weight(0).value(), run.written[0],
                    vocabulary_part(run.weight(0).spec()), factor_of(run));
}

void lookup_backward(const CallRun& run) {
  Parameter& table = run.weight(0);
  if (!table.trained()) return;
  at::Tensor tokens = tokens_of(run);
  if (table.deferred()) tokens = tokens.clone();  // the batch may be freed before
  table.write([tokens, gradient = run.gradients[0], part = vocabulary_part(table.spec()),
               factor = factor_of(run)](const at::Tensor& target, bool accumulate) {
    embedding_backward(tokens, gradient, target, accumulate, part, factor);
  });
}

}  // namespace

extern const CallEntry kLookupEntry = {&kLookup, lookup, lookup_backward};

}  // namespace stepforge
