// SPDX-License-Identifier: Apache-2.0
// Parameters and the units that own them, as plain data without tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepforge {

/// The initial values of a parameter. They depend only on the seed, the sub-tensor's Hugging Face name and
/// the index of the element.
struct Initializer {
  enum class Kind : uint8_t { zeros, ones, normal, truncated_normal };
  Kind kind = Kind::zeros;
  double std = 0.0;
  double cutoff = 3.0;  ///< truncated_normal: values lie within cutoff * std
};

/// What a parameter is, as far as optimizer groups and parallel plans care.
enum class ParameterTag : uint8_t { matrix, norm, bias, embedding, head };

/// One logical tensor inside a packed parameter: consecutive rows of it. Hugging Face names, checkpoints and
/// initial values belong to sub-tensors.
struct SubTensor {
  std::string name;     ///< "q", "gate"; "weight" when the parameter is not packed
  std::string hf_name;  ///< "model.layers.0.self_attn.q_proj.weight"
  int64_t rows = 0;     ///< extent along dimension 0
  Initializer init;
};

struct ParameterSpec {
  std::string name;  ///< "layers.0.attention.qkv"
  std::vector<int64_t> shape;
  /// At least one, in order along dimension 0; their rows add up to shape[0].
  std::vector<SubTensor> sub_tensors;
  ParameterTag tag = ParameterTag::matrix;

  int64_t elements() const;
  /// Elements in one row of dimension 0.
  int64_t row_elements() const;
  /// Whether weight decay applies by default: not to norms and biases.
  bool decays() const { return tag != ParameterTag::norm && tag != ParameterTag::bias; }
};

/// A set of parameters that is sharded, gathered, reduced and updated together.
struct UnitSpec {
  std::string name;  ///< "embedding", "layers.0", "head"
  std::vector<ParameterSpec> parameters;
  bool trainable = true;

  int64_t elements() const;
};

}  // namespace stepforge
