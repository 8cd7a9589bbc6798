// SPDX-License-Identifier: Apache-2.0
// A layer as a program: a list of calls over named values, in the order in which they run. Kinds of calls are rows
// (call_kind.h); the backward pass, lifetimes, bytes and FLOPs are derived from the list (call_program.h, call_cost.h).
#pragma once

#include <any>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/modelspec/parameter.h"

namespace stepforge {

struct CallKind;  // call_kind.h

/// How many rows a value has.
enum class Rows : uint8_t {
  tokens,  ///< one for each token of the micro-batch
  slice    ///< one for each token of this rank's slice (sequence parallelism)
};

/// The element type of a value.
enum class ElementType : uint8_t {
  compute,  ///< the compute dtype
  fp32,     ///< statistics, whatever the compute dtype is
  int32     ///< indices
};

/// A tensor [rows, width] inside a layer.
struct LayerValue {
  std::string name;
  int64_t width = 0;
  int64_t times = 1;  ///< multiplies the rows: of tokens that neighbours join, or the experts of each token
  Rows rows = Rows::tokens;
  ElementType type = ElementType::compute;
  bool differentiable = true;  ///< false for statistics and integers

  bool has_shape_of(const LayerValue& other) const {
    return width == other.width && rows == other.rows && type == other.type && times == other.times;
  }
};

/// A parameter that a call reads.
struct CallWeight {
  std::string name;
  std::vector<int64_t> shape;
  Division division = Division::whole;  ///< over the tensor-parallel ranks
  bool trained = true;
  bool constant = false;  ///< read without a gradient, even if other calls train it; then `trained` is false

  int64_t elements() const;
};

/// Of a trained parameter.
CallWeight call_weight(const ParameterSpec& parameter);
/// That a call reads as a constant.
CallWeight constant_weight(CallWeight weight);

/// One call: its kind with operands.
struct Call {
  const CallKind* kind = nullptr;
  std::string name = {};           ///< "qkv"; in plans and errors
  std::string region = {};         ///< "attention": what activation_checkpoint.regions names
  std::vector<int> operands = {};  ///< indices of values
  std::vector<int> results = {};
  std::vector<CallWeight> weights = {};
  std::any attributes = {};            ///< a struct of the row's header, such as NormAttributes
  bool recompute = false;              ///< backward makes its results again instead of keeping them
  bool sums_weight_gradients = false;  ///< over the tensor-parallel ranks, which have other tokens or heads

  bool is(const CallKind& other) const { return kind == &other; }
  bool trains() const;
  /// "mlp.swiglu": what activation_checkpoint.calls names.
  std::string full_name() const;
};

/// Attributes of the type that the row of the call has. Throws std::bad_any_cast for another type.
template <typename T>
const T& attributes_of(const Call& call) {
  return std::any_cast<const T&>(call.attributes);
}

struct CallList {
  std::vector<LayerValue> values;
  std::vector<Call> calls;
  std::vector<int> inputs;
  std::vector<int> outputs;

  bool empty() const { return calls.empty(); }
  const LayerValue& value(int index) const { return values[static_cast<std::size_t>(index)]; }
  /// The values that `indices` name.
  std::vector<LayerValue> values_of(std::span<const int> indices) const;
};

/// Appends a call, whose results follow from its kind, and returns its first result. Throws Error if the row refuses its
/// operands.
int append(CallList& list, Call call);

/// Writes a list from top to bottom.
class ListWriter {
 public:
  explicit ListWriter(std::string region) : region_(std::move(region)) {}

  int input(LayerValue value);
  /// As append().
  int call(const CallKind& kind, std::string name, std::vector<int> operands,
           const std::vector<const ParameterSpec*>& weights = {}, std::any attributes = {});
  /// As append(), in the writer's region.
  int add(Call call);
  /// The results of the last call.
  const std::vector<int>& results() const { return list_.calls.back().results; }
  /// Backward makes the results of the last call again instead of keeping them.
  void recompute_last() { list_.calls.back().recompute = true; }
  /// The finished list.
  CallList finish(std::vector<int> outputs);

 private:
  std::string region_;
  CallList list_;
};

/// `first`, then `second`, whose inputs are the outputs of `first` in their order.
CallList joined(CallList first, const CallList& second);

/// "qkv = linear(norm; layers.0.attention.qkv)"
std::string text_of(const CallList& list, const Call& call);

}  // namespace stepforge
