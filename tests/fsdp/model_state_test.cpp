// SPDX-License-Identifier: Apache-2.0
// State dicts of modules under fully_shard, by the names of the module.
#include "stepforge/fsdp/model_state.h"

#include <algorithm>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tests/fsdp/sharded_models.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

const GetStateOptions kFull{.full_state_dict = true};

std::map<std::string, at::Tensor> full_values(const ShardedModule& model) {
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, value] : get_state_dict(model, kFull)) values[name] = std::get<at::Tensor>(value);
  return values;
}

/// Ranks and degrees of meshes.
const std::vector<std::pair<int, std::vector<int64_t>>> meshes = {
    {1, {1}}, {2, {2}}, {3, {3}}, {4, {2, 2}}, {2, {2, 1}}};

void on_meshes(const std::function<std::string(const std::shared_ptr<ShardMesh>&)>& body) {
  for (const auto& [ranks, degrees] : meshes) {
    expect_on_ranks(ranks, degrees, [&](const auto& mesh, auto&) { return body(mesh); });
  }
}

TEST(ModelState, HasEveryParameterOfEveryUnitByItsNameInTheModule) {
  on_meshes([](const auto& mesh) -> std::string {
    Model model;
    const auto expected = values_of(model);
    shard_all(model, mesh);
    if (const auto text = difference(full_values(model), expected); !text.empty()) return text;
    const StateDict parts = get_state_dict(model);
    for (const auto& [name, value] : expected) {
      const auto& local = std::get<LocalValue>(parts.at(name));
      if (local.global_shape != value.sizes().vec()) return name + " has a different shape";
    }
    return parts.size() == expected.size() ? "" : "wrong number of values";
  });
}

TEST(ModelState, TheNextForwardUsesLoadedValues) {
  on_meshes([](const auto& mesh) -> std::string {
    Model model;
    shard_all(model, mesh);
    model.set_reshard_after_forward(false);
    model.set_reshard_after_backward(false);
    plain_step(model, mesh->rank(), 0);  // values stay gathered
    StateDict values = get_state_dict(model, kFull);
    for (auto& [name, value] : values) std::get<at::Tensor>(value).fill_(2);
    load_state_dict(model, values);
    const at::Tensor found = model(rows_of(0, 1));
    Model plain;
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : plain->parameters()) parameter.fill_(2);
    return at::equal(found, plain->forward(rows_of(0, 1))) ? "" : "different result";
  });
}

/// A sharded, a frozen, an ignored, a replicated and a tied parameter, and a buffer.
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(at::Device device = at::kCPU) {
    cut = register_parameter("cut", integers({5, 3}, 1).to(device));
    frozen = register_parameter("frozen", integers({4}, 2).to(device), /*requires_grad=*/false);
    ignored = register_parameter("ignored", integers({2}, 3));
    replicated = register_parameter("replicated", integers({3}, 4).to(device));
    again = register_parameter("again", cut);
    mean = register_buffer("mean", integers({2}, 5).to(device));
  }
  at::Tensor forward(const at::Tensor& x) { return x * cut.sum(); }
  at::Tensor cut, frozen, ignored, replicated, again, mean;
};

Sharded<MixedImpl> mixed(const std::shared_ptr<ShardMesh>& mesh) {
  Sharded<MixedImpl> model;
  fully_shard(model, mesh, {.ignored_params = {model->ignored}, .replicate_params = {model->replicated}});
  return model;
}

std::vector<std::string> names_of(const StateDict& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  return names;
}

TEST(ModelState, HasBuffersAndIgnoredReplicatedFrozenAndTiedParameters) {
  on_meshes([](const auto& mesh) -> std::string {
    const auto model = mixed(mesh);
    using Names = std::vector<std::string>;
    for (const bool whole : {false, true}) {
      const auto names = names_of(get_state_dict(model, {.full_state_dict = whole}));
      if (names != Names{"again", "cut", "frozen", "ignored", "mean", "replicated"}) return join(names, " ");
      const auto fewer =
          names_of(get_state_dict(model, {.full_state_dict = whole, .ignore_frozen_params = true}));
      if (fewer != Names{"again", "cut", "ignored", "mean", "replicated"}) return join(fewer, " ");
    }
    StateDict values = get_state_dict(model, kFull);
    for (auto& [name, value] : values) std::get<at::Tensor>(value).fill_(3);
    load_state_dict(model, values);
    for (const auto& [name, value] : full_values(model)) {
      if (!value.eq(3).all().template item<bool>()) return name;
    }
    return model->mean.eq(3).all().template item<bool>() ? "" : "the buffer of the module";
  });
}

TEST(ModelState, AFaultOnOneRankLeavesTheModelsOfAllRanksUnchanged) {
  expect_on_ranks(2, {2}, [](const auto& mesh, auto&) -> std::string {
    Model model;
    shard_all(model, mesh);
    const auto before = full_values(model);
    StateDict values = get_state_dict(model, kFull);
    for (auto& [name, value] : values) std::get<at::Tensor>(value).fill_(2);
    if (mesh->rank() == 1) values["first.weight"] = at::ones({3, 3});
    const std::string message = message_of<Error>([&] { load_state_dict(model, values); });
    if (!contains(message, "first.weight has the shape [3, 3], expected [7, 5]")) return message;
    if (mesh->rank() == 0 && !contains(message, "rank 1")) return message;
    return difference(full_values(model), before);
  });
}

TEST(ModelState, FillsAModelFromTheMetaDevice) {
  on_meshes([](const auto& mesh) -> std::string {
    const auto source = mixed(mesh);
    Sharded<MixedImpl> model(at::kMeta);
    fully_shard(model, mesh, {.ignored_params = {model->ignored}, .replicate_params = {model->replicated}});
    const std::string refusal = message_of<Error>([&] { model(at::ones({1})); });
    if (!contains(refusal, "cut")) return refusal;
    load_state_dict(model, get_state_dict(source));
    model(at::ones({1}));
    return difference(full_values(model), full_values(source));
  });
}

TEST(ModelState, AModuleWithoutFullyShardIsRefused) {
  const Model model;
  EXPECT_CONTAINS(message_of<UsageError>([&] { get_state_dict(model); }), "not sharded");
}

}  // namespace
}  // namespace stepforge::testing
