// SPDX-License-Identifier: Apache-2.0
// Small models bound to their storage, and batches to feed them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "stepforge/base/random.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/make_model.h"
#include "stepforge/storage/unit_store.h"
#include "tests/catalog/all_families.h"
#include "tests/support/random_tensor.h"

namespace stepforge::testing {

/// heads * head_dim differs from dim, so that no two sizes can be confused.
inline ModelConfig tiny_config(const std::string& family = "llama", bool tied = false) {
  ModelConfig config;
  config.family = family;
  config.dim = 48;
  config.n_layers = 2;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 16;
  config.ffn_dim = 80;
  config.vocab_size = 96;
  config.tie_embeddings = tied;
  config.max_position = 256;
  use_all_settings(config);
  return config;
}

inline ModelSpec with_adapters(ModelSpec spec, const AdapterConfig& adapter) {
  add_adapters(spec, adapter, {DType::f32});
  return spec;
}

/// A model with storage and forward code; its parameters are gathered.
struct TinyModel {
  explicit TinyModel(const ModelConfig& model_config, DType compute = DType::f32, uint64_t seed = 7,
                     int64_t loss_chunk = 0, const ContextExchange& exchange = {},
                     const TensorExchange& tensor = {}, const TensorPlan& plan = {},
                     const AdapterConfig& adapter = {})
      : config(model_config),
        spec(
            with_adapters(model_spec(config, loss_chunk, tensor.parallel, exchange.parallel, plan), adapter)),
        store(spec.units, rank_layout(spec.units, {.gather = compute})),
        model(make_model(spec, store.lookup(),
                         {.context_length = config.max_position, .exchange = exchange, .tensor = tensor})) {
    store.initialize(seed);
    gather();
  }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  void gather() {
    for (size_t u = 0; u < store.size(); ++u) {
      UnitStore& unit = store.unit(u);
      if (unit.resident()) continue;
      unit.gather(at::empty({unit.gathered_size()}, unit.parameters().front().value().scalar_type()));
    }
  }
  void start_gradients() {
    for (size_t u = 0; u < store.size(); ++u) store.unit(u).start_gradient();
  }
  Parameter& parameter(const std::string& name) { return store.parameter(name); }

  ModelConfig config;
  ModelSpec spec;
  ModelStore store;
  Model model;
};

/// Row number `id`: tokens below `vocab` that depend on (id, position) only; `document_starts` as in Row.
inline Row made_up_row(uint64_t id, int64_t seq_len, int64_t vocab,
                       std::vector<int32_t> document_starts = {}) {
  Row row;
  for (int64_t position = 0; position <= seq_len; ++position) {
    const auto bits = mix_bits(mix_bits(id) + static_cast<uint64_t>(position));
    row.tokens.push_back(static_cast<int32_t>(bits % static_cast<uint64_t>(vocab)));
  }
  row.document_starts = std::move(document_starts);
  return row;
}

/// Rows first_row to first_row + rows - 1, each one document.
inline Batch made_up_batch(int64_t rows, int64_t seq_len, int64_t vocab, uint64_t first_row = 0) {
  Batch batch = empty_batch(seq_len, rows);
  for (int64_t r = 0; r < rows; ++r) {
    const uint64_t id = first_row + static_cast<uint64_t>(r);
    append_row(made_up_row(id, seq_len, vocab), id, batch);
  }
  return batch;
}

/// Ignores the labels of tokens for which `masked(token index)` is true.
template <typename Masked>
void mask_labels(Batch& batch, const Masked& masked) {
  batch.valid_labels = 0;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    if (masked(i)) batch.labels[i] = kIgnoredLabel;
    batch.valid_labels += batch.labels[i] == kIgnoredLabel ? 0 : 1;
  }
}

}  // namespace stepforge::testing
