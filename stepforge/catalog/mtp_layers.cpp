// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/mtp_layers.h"

#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/catalog/layer_writer.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/calls/columns.h"

namespace stepforge {

namespace {

/// The norm `last` is that of a head, so over slices its gradient is summed where it is computed.
CallList mtp_calls(const std::string& prefix, const std::vector<ParameterSpec>& parameters,
                   const std::string& last, int64_t width, const LayerTraits& traits, bool slices) {
  LayerWriter layer("mtp", prefix, parameters, traits);
  const int hidden = layer.input({"hidden", width});
  const int later = layer.input({"embedded", width});
  const int embedded = layer.norm("embedding_norm", later);
  const int normed = layer.add({.kind = &kRmsNorm,
                                .name = "last_norm",
                                .operands = {hidden},
                                .weights = {{last, {width}}},
                                .attributes = NormAttributes{traits.norm_eps, traits.norm_offset},
                                .sums_weight_gradients = slices});
  const int both = layer.call(kConcat, "join", {embedded, layer.norm("hidden_norm", normed)});
  return layer.finish({layer.linear("projection", both)});
}

}  // namespace

BundleEntry mtp_embedded(const BundleEntry& hidden, int64_t depth) {
  BundleEntry embedded = hidden;
  embedded.name = format("embedded.{}", depth);
  embedded.ahead = true;
  return embedded;
}

std::string mtp_name(const ModelConfig& model, int64_t depth) {
  return format("layers.{}", model.n_layers + depth - 1);
}

std::string mtp_norm(const ModelConfig& model, int64_t depth) {
  return depth == 0 ? "head.norm" : mtp_name(model, depth) + ".head.norm";
}

LayerSpec mtp_layer(const std::string& prefix, const std::string& hf_prefix, const std::string& last_norm,
                    int64_t width, const LayerTraits& traits, const TensorParallel& tensor) {
  LayerSpec layer;
  layer.parameters = {
      norm_weight(prefix + ".embedding_norm", hf_prefix + "enorm.weight", width, traits.norm_offset),
      norm_weight(prefix + ".hidden_norm", hf_prefix + "hnorm.weight", width, traits.norm_offset),
      packed_matrix(prefix + ".projection", 2 * width,
                    {{"weight", hf_prefix + "eh_proj.weight", width, truncated_normal(kProjectionStd)}})};
  const auto calls = [&](bool slices) {
    return mtp_calls(prefix, layer.parameters, last_norm, width, traits, slices);
  };
  layer.list = on_slices(calls(tensor.sequence), tensor);
  layer.generation = calls(false);
  if (tensor.sequence) layer.mesh = UnitMesh::slices;
  return layer;
}

}  // namespace stepforge
