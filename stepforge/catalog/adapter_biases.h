// SPDX-License-Identifier: Apache-2.0
// Biases of the model that are trained beside adapters (adapter.bias), as PEFT chooses them.
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

/// The end of the name of such a bias in the model. Biases of stacked experts and sinks are none to PEFT.
inline constexpr std::string_view kBiasSuffix = ".bias";

/// Which tensors of a model adapter.bias means.
class TrainedBiases {
 public:
  /// `tensors`: names, among them those of the adapters.
  TrainedBiases(AdapterBias bias, std::span<const std::string> tensors);
  /// `model` has its adapters.
  TrainedBiases(AdapterBias bias, const ModelSpec& model);

  /// Whether it is a bias that is trained.
  bool contains(std::string_view tensor) const;
  /// Whether the module of a tensor of the model has an adapter.
  bool has_adapter(std::string_view tensor) const;

 private:
  void add(std::string_view tensor);

  AdapterBias bias_;
  std::set<std::string, std::less<>> adapted_;  ///< modules
};

/// Makes a parameter of each tensor of the packed biases (q, k and v) of which some are trained and others not, since a
/// parameter is trained or frozen as a whole. Calls take these parts in place of it.
void split_biases(ModelSpec& model, const TrainedBiases& biases);

}  // namespace stepforge
