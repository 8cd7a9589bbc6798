// SPDX-License-Identifier: Apache-2.0
// Parameters and calls of layers, as layers.cpp, latent_layer.cpp, expert_layers.cpp and mtp_layers.cpp write them. Not public.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/catalog/layers.h"
#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/rotary.h"
#include "stepforge/modelspec/calls/swiglu.h"

namespace stepforge {

inline constexpr double kProjectionStd = 0.02;

inline Initializer truncated_normal(double std) {
  return {Initializer::Kind::truncated_normal, std, 3.0};
}

/// A norm's weight, which is added to `offset` and begins where both are 1.
inline ParameterSpec norm_weight(const std::string& name, const std::string& hf_name, int64_t width,
                                 double offset = 0.0) {
  const auto start = offset == 0.0 ? Initializer::Kind::ones : Initializer::Kind::zeros;
  return {name, {width}, {{"weight", hf_name, width, {start}}}, ParameterTag::norm};
}

/// A matrix [*, columns] of rows of several tensors, such as gate and up.
inline ParameterSpec packed_matrix(const std::string& name, int64_t columns,
                                   std::vector<SubTensor> sub_tensors,
                                   ParameterTag tag = ParameterTag::matrix) {
  int64_t rows = 0;
  for (const SubTensor& sub_tensor : sub_tensors) rows += sub_tensor.rows;
  return {name, {rows, columns}, std::move(sub_tensors), tag};
}

/// Writes the calls of a layer whose parameters are prefix.name.
class LayerWriter : public ListWriter {
 public:
  /// `parameters` and `traits` must outlive it.
  LayerWriter(const char* region, const std::string& prefix, const std::vector<ParameterSpec>& parameters,
              const LayerTraits& traits)
      : ListWriter(region), prefix_(prefix + "."), parameters_(parameters), traits_(traits) {}

  int norm(const char* name, int x) { return norm(name, x, {traits_.norm_eps, traits_.norm_offset}); }
  int norm(const char* name, int x, const NormAttributes& norm) {
    return call(kRmsNorm, name, {x}, {weight(name)}, norm);
  }
  int linear(const char* name, int x) { return call(kLinear, name, {x}, {weight(name)}); }
  int bias(const char* name, int x) { return call(kBias, name, {x}, {weight(name)}); }
  int rotary(int qkv, const AttentionShape& shape) {
    std::vector<const ParameterSpec*> norms;
    if (traits_.qk_norm != QkNormScope::none) norms = {weight("q_norm"), weight("k_norm")};
    return call(kRotary, "rotary", {qkv}, norms,
                RotaryAttributes{shape, traits_.norm_eps, traits_.norm_offset, traits_.window > 0});
  }
  int attention(int qkv, const AttentionShape& shape) {
    std::vector<const ParameterSpec*> sinks;
    if (traits_.sinks) sinks = {weight("sinks")};
    return call(kAttention, "attention", {qkv}, sinks, AttentionAttributes{shape, traits_.layer});
  }
  int swiglu(int gate_up) {
    return call(kSwiglu, "swiglu", {gate_up}, {}, SwigluAttributes{traits_.activation});
  }
  /// `site`: a layer has two dropouts, that of attention and then that of the MLP.
  int residual_add(int branch, int x, int site, bool dropout) {
    return call(kResidualAdd, "residual_add", {branch, x}, {},
                ResidualAttributes{static_cast<uint64_t>(2 * traits_.layer + site), dropout});
  }

 protected:
  const ParameterSpec* weight(const char* name) const {
    return &*std::ranges::find(parameters_, prefix_ + name, &ParameterSpec::name);
  }
  const LayerTraits& traits() const { return traits_; }

 private:
  std::string prefix_;
  const std::vector<ParameterSpec>& parameters_;
  const LayerTraits& traits_;
};

/// Sets the lists of a rank, from the calls of a whole layer.
void set_lists_of_rank(LayerSpec& layer, const CallList& whole, TensorParallel tensor,
                       const ContextParallel& context = {});

/// Those of a layer of weights that are whole on every rank.
void set_lists_on_slices(LayerSpec& layer, CallList whole, const TensorParallel& tensor);

}  // namespace stepforge
