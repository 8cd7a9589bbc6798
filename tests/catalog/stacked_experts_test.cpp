// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/stacked_experts.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "stepforge/catalog/decoder_spec.h"
#include "tests/catalog/all_families.h"
#include "tests/catalog/small_model.h"

namespace stepforge::testing {
namespace {

using Shape = std::vector<int64_t>;

/// Each element of a stacked tensor belongs to one tensor, and their order is that of the parameter that holds them.
TEST(StackedExperts, TheTensorsOfAParameterFollowEachOtherInTheStackedTensor) {
  int checked = 0;
  for (const std::string& family : family_names()) {
    if (!has_experts(family) || family == "gpt_oss") continue;
    const ModelSpec model = model_spec(small_model(family, 8, 4));
    for (const UnitSpec& unit : model.units) {
      for (const ParameterSpec& parameter : unit.parameters) {
        if (parameter.used_share == 1.0) continue;  // not of experts
        SCOPED_TRACE(family + " " + parameter.name);
        const size_t last = parameter.sub_tensors.size() - 1;
        const auto stack = stacked_place(parameter.sub_tensors[last].hf_name);
        ASSERT_TRUE(stack);
        const Shape shape = stack->shape_up_to(parameter.tensor_shape(last));
        int64_t begin = 0;
        for (size_t i = 0; i <= last; ++i) {
          const auto place = stacked_place(parameter.sub_tensors[i].hf_name);
          ASSERT_TRUE(place);
          EXPECT_EQ(place->tensor, stack->tensor);
          const int64_t end = begin + whole_slice(parameter.tensor_shape(i)).elements();
          EXPECT_EQ(std::vector{place->slice_of(shape).value()},
                    slices_of_range(whole_slice(shape), begin, end));
          begin = end;
        }
        EXPECT_EQ(begin, whole_slice(shape).elements());
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 5 * 2);
}

/// The names that transformers 5.23 writes.
TEST(StackedExperts, NamesAreThoseOfTransformers) {
  const std::map<std::string, std::string> stacked = {
      {"model.layers.3.mlp.experts.11.gate_proj.weight", "model.layers.3.mlp.experts.gate_up_proj"},
      {"model.layers.3.mlp.experts.0.up_proj.weight", "model.layers.3.mlp.experts.gate_up_proj"},
      {"model.layers.3.mlp.experts.0.down_proj.weight", "model.layers.3.mlp.experts.down_proj"},
      {"model.layers.3.block_sparse_moe.experts.7.w1.weight", "model.layers.3.mlp.experts.gate_up_proj"},
      {"model.layers.3.block_sparse_moe.experts.7.w3.weight", "model.layers.3.mlp.experts.gate_up_proj"},
      {"model.layers.3.block_sparse_moe.experts.7.w2.weight", "model.layers.3.mlp.experts.down_proj"},
      {"model.layers.3.block_sparse_moe.gate.weight", "model.layers.3.mlp.gate.weight"}};
  for (const auto& [name, tensor] : stacked) {
    ASSERT_TRUE(stacked_place(name)) << name;
    EXPECT_EQ(stacked_place(name)->tensor, tensor) << name;
  }
}

TEST(StackedExperts, OtherTensorsHaveOneName) {
  for (const char* name :
       {"", "mlp.experts.", "model.layers.0.mlp.gate.weight", "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj_bias",
        "model.layers.0.mlp.experts.-1.gate_proj.weight", "model.layers.0.mlp.experts.1gate_proj.weight",
        "model.layers.0.mlp.experts.99999999999999999999.gate_proj.weight",
        "model.layers.0.mlp.experts.0.w1.weight", "model.layers.0.mlp.experts.0.gate_proj.bias",
        "model.layers.0.mlp.shared_experts.up_proj.weight", "model.layers.0.mlp.experts.3."})
    EXPECT_FALSE(stacked_place(name)) << name;
}

TEST(StackedExperts, ATensorOfAnotherShapeHasNoSuchPart) {
  const StackedPlace up = stacked_place("model.layers.0.mlp.experts.2.up_proj.weight").value();
  EXPECT_EQ(up.shape_up_to({5, 4}), (Shape{3, 10, 4}));
  EXPECT_EQ(up.slice_of({3, 10, 4}).value(), (TensorSlice{{2, 5, 0}, {1, 5, 4}}));
  for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 10, 4}, Shape{3, 9, 4}})
    EXPECT_FALSE(up.slice_of(shape));
}

}  // namespace
}  // namespace stepforge::testing
