// SPDX-License-Identifier: Apache-2.0
// Parameters and the units that own them, as data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/base/tensor_slice.h"
#include "stepforge/base/weight_code.h"

namespace stepforge {

/// The initial values of a sub-tensor. They depend only on the seed, its Hugging Face name and the index of
/// the element.
struct Initializer {
  enum class Kind : uint8_t { zeros, ones, normal, truncated_normal, uniform };
  Kind kind = Kind::zeros;
  double std = 0.0;     ///< uniform: the largest absolute value
  double cutoff = 3.0;  ///< truncated_normal: the largest absolute value is cutoff * std
};

/// The role of a parameter, for optimizer groups and parallel plans.
enum class ParameterTag : uint8_t { matrix, norm, bias, embedding, head, score, magnitude };

/// A logical tensor inside a packed parameter: some consecutive rows of it. Sub-tensors are the unit of
/// Hugging Face names, checkpoints and initial values.
struct SubTensor {
  std::string name;     ///< "q", "gate"; "weight" when the parameter is not packed
  std::string hf_name;  ///< "model.layers.0.self_attn.q_proj.weight"
  int64_t rows = 0;     ///< size of dimension 0
  Initializer init;
  /// For a slice of a tensor that is divided over ranks: where it begins, and the shape of the tensor. Empty
  /// for a whole one.
  std::vector<int64_t> offsets = {};
  std::vector<int64_t> tensor_shape = {};

  bool is_slice() const { return !tensor_shape.empty(); }
};

/// Of the matrices of a sub-tensor: itself, or all of a stack [matrices, inputs, outputs].
struct MatrixShape {
  int64_t rows = 0;         ///< outputs
  int64_t columns = 0;      ///< inputs
  bool transposed = false;  ///< in memory, as those of a stack are
};

/// How a parameter is divided over the ranks of an axis: rows are outputs, columns inputs of a matrix.
enum class Division : uint8_t { whole, rows, columns, experts };

struct ParameterSpec {
  std::string name;  ///< "layers.0.attention.qkv"
  std::vector<int64_t> shape;
  /// At least one, in order along dimension 0; their rows add up to shape[0].
  std::vector<SubTensor> sub_tensors;
  ParameterTag tag = ParameterTag::matrix;
  /// Of experts, of which a token takes some: the share of the elements that a token uses.
  double used_share = 1.0;
  double lr_factor = 1.0;  ///< of its learning rate

  int64_t elements() const;
  /// Elements that a token uses.
  int64_t active_elements() const;
  /// Elements in one row of dimension 0.
  int64_t row_elements() const;
  /// The part of the Hugging Face tensor that sub-tensor `index` holds, and the shape of that tensor.
  TensorSlice slice_of(size_t index) const;
  std::vector<int64_t> tensor_shape(size_t index) const;
  int64_t tensor_elements(size_t index) const;
  /// Whether it holds slices of tensors that are divided over ranks.
  bool is_sliced() const;
  /// How its tensors are divided over tensor-parallel ranks.
  Division division() const;
  MatrixShape matrix_of(const SubTensor& tensor) const;
  /// Whether it holds parts of matrices that are divided over ranks, not only some of a stack.
  bool has_parts_of_matrices() const;
  /// Whether weight decay applies by default: not to norms, biases and magnitudes.
  bool decays() const {
    return tag != ParameterTag::norm && tag != ParameterTag::bias && tag != ParameterTag::magnitude;
  }
};

/// The ranks that shard a unit, over which its gradient is summed: those that compute other tokens with it.
enum class UnitMesh : uint8_t {
  rows,    ///< dp_shard x cp; over tp its tensors are divided, or blocks sum their gradients
  slices,  ///< dp_shard x cp x tp: of layers that are whole on every rank and take slices of the tokens
  experts  ///< dp_shard x cp x tp / ep: of experts that are spread over ranks
};

/// A set of parameters that is sharded, gathered, reduced and updated together.
struct UnitSpec {
  std::string name;  ///< "embedding", "layers.0", "head"
  std::vector<ParameterSpec> parameters;
  bool trainable = true;
  UnitMesh mesh = UnitMesh::rows;
  /// Of a block, such as the correction of a router: no gradient changes it, and it is fp32 and whole on every rank.
  bool state = false;
  DType master = DType::f32;  ///< of its stored values: fp32 if they are trained, or state; u8 for codes
  WeightCode code = WeightCode::none;  ///< of frozen weights
  bool coded_factors = false;          ///< double quantization: the factors of codes are codes
  bool fp32 = false;                   ///< calls read it in fp32, whatever they compute in; so they do state
  int64_t layer = -1;                  ///< of state: the layer whose tally changes it (OpKind::update_state)

  int64_t elements() const;
  WeightStorage storage() const { return {master, code, coded_factors}; }
  /// Bytes of a shard of so many elements: those of its storage, and the scales of coded factors. Each rank has the scales of whole
  /// tensors, also of those of which it holds a part, so that they do not depend on the layout.
  int64_t stored_bytes(int64_t shard) const { return storage().bytes(shard) + scale_bytes(); }
  int64_t scale_bytes() const;
  bool has(ParameterTag tag) const;  ///< whether a parameter has this tag
};

}  // namespace stepforge
