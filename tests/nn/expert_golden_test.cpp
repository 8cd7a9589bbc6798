// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts against outputs and gradients recorded from transformers (tools/oracle/make_expert_golden.py).
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "stepforge/base/format.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/nn/expert_model.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

constexpr double kRecordedTolerance = 1e-5;  // of the largest |expected|

ExpertCase recorded_case(const std::string& name) {
  const ExpertDims dims{.width = 16, .hidden = 12, .experts = 8, .chosen = 3};
  if (name == "qwen3") return {name, dims, {{.chosen = 3, .normalize = true}}};
  if (name == "mixtral") return {name, dims, {{.chosen = 3, .normalize = true}}, mixtral_expert_names()};
  ExpertDims shared = dims;
  shared.shared_hidden = 24;
  const RouterOptions options{RouterScore::sigmoid, 3, 4, 2, GroupScore::two_largest, true, 1e-20, 2.5};
  return {name, shared, {options}, deepseek_expert_names(), true};
}

class RecordedExperts : public ::testing::TestWithParam<std::string> {
 protected:
  RecordedExperts() : file(source_dir() / format("tests/golden/models/experts_{}.safetensors", GetParam())) {}

  at::Tensor read(const std::string& name) const {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) throw Error("the recording has no tensor " + name);
    const at::Tensor tensor = at::empty(entry->shape, at::kFloat);
    const auto bytes = file.bytes(*entry);
    EXPECT_EQ(bytes.size(), tensor.nbytes()) << name;
    std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }

  SafetensorsFile file;
};

TEST_P(RecordedExperts, OutputsAndGradientsMatchTransformers) {
  const ExpertCase layer_case = recorded_case(GetParam());
  ExpertModel model(layer_case);
  // The sub-tensors of a parameter with `suffix` after their names, one after the other.
  const auto packed = [&](const ParameterSpec& spec, const char* suffix) {
    std::vector<at::Tensor> parts;
    for (const SubTensor& part : spec.sub_tensors) parts.push_back(read(part.hf_name + suffix));
    return at::cat(parts, 0);
  };
  for (size_t i = 0; i < model.spec.parameters.size(); ++i)
    model.store.unit(0).master_view(i).copy_(packed(model.spec.parameters[i], ""));
  if (layer_case.correction) {
    const ParameterSpec correction =
        router_correction("layers.0.mlp", "model.layers.0.", layer_case.dims.experts, layer_case.names);
    model.correction.copy_(packed(correction, ""));
  }
  const at::Tensor x = read("x").set_requires_grad(true);
  const BatchTensors batch(made_up_batch(1, x.size(0), 96));
  Context context;
  context.batch = &batch;
  const at::Tensor out = model.forward(x, context);
  torch::autograd::backward({out}, {read("cotangent")});
  expect_near(out, read("out"), kRecordedTolerance, "out");
  expect_near(x.grad(), read("x.grad"), kRecordedTolerance, "x");
  for (const ParameterSpec& spec : model.spec.parameters) {
    expect_near(model.store.parameter(spec.name).gradient(), packed(spec, ".grad"), kRecordedTolerance,
                spec.name.c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RecordedExperts, ::testing::Values("qwen3", "mixtral", "deepseek"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stepforge::testing
