// SPDX-License-Identifier: Apache-2.0
// A model of two small layers, whose odd sizes no degree of parallelism divides evenly.
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/config/config.h"
#include "tests/catalog/all_families.h"

namespace stepforge::testing {

inline ModelConfig small_model(const std::string& family, int64_t heads, int64_t kv_heads,
                               bool tied = false) {
  ModelConfig model;
  model.family = family;
  model.dim = 24;
  model.n_layers = 2;
  model.n_heads = heads;
  model.n_kv_heads = kv_heads;
  model.head_dim = 10;
  model.ffn_dim = 53;
  model.vocab_size = 257;
  model.tie_embeddings = tied;
  use_all_settings(model);
  return model;
}

}  // namespace stepforge::testing
