// Vocabulary of specifications, bottom half: parameters and the units that own them. Plain data, no tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepforge {

/// How a parameter's elements start. Values depend on (seed, sub_tensor's Hugging Face name, element index)
/// only.
struct Initializer {
  enum class Kind : uint8_t { zeros, ones, normal, truncated_normal };
  Kind kind = Kind::zeros;
  double std = 0.0;
  double cutoff = 3.0;  ///< truncated_normal: values lie within cutoff * std
};

/// What a parameter is, as far as optimizer groups and parallel plans care.
enum class ParameterTag : uint8_t { matrix, norm, bias, embedding, head };

/// One logical tensor inside a packed parameter: consecutive rows of it. It is the grain of Hugging Face
/// names, checkpoints, initialisation and tensor-parallel cuts.
struct SubTensor {
  std::string name;     ///< "q", "gate"; "weight" when the parameter is not packed
  std::string hf_name;  ///< "model.layers.0.self_attn.q_proj.weight"
  int64_t rows = 0;     ///< extent along dimension 0
  Initializer init;
};

struct ParameterSpec {
  std::string name;  ///< "layers.0.attention.qkv"
  std::vector<int64_t> shape;
  std::vector<SubTensor>
      sub_tensors;  ///< at least one, in order along dimension 0; their rows add up to shape[0]
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
