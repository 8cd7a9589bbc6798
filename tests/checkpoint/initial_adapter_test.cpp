// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/initial_adapter.h"

#include <algorithm>
#include <map>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/pow.h>
#include <gtest/gtest.h>

#include "stepforge/catalog/adapters.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/checkpoint/tensor_names.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/random_tensor.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

using Tensors = std::map<std::string, at::Tensor>;

fs::path tensor_file(const fs::path& file, const Tensors& tensors) {
  fs::create_directories(file.parent_path());
  std::vector<TensorSpec> specs;
  for (const auto& [name, values] : tensors) specs.push_back({name, DType::f32, values.sizes().vec()});
  SafetensorsWriter writer(file, specs);
  for (const auto& [name, values] : tensors) writer.write(name, stepforge::bytes_of(values));
  writer.finish();
  return file;
}

/// Small multiples of 1/4, of which sums of products are exact.
at::Tensor quarters(at::IntArrayRef shape, uint64_t seed) {
  return (random_tensor(shape, seed) * 8).round() / 4;
}

AdapterConfig pissa_of(int64_t rank, double alpha) {
  AdapterConfig adapter;
  adapter.type = AdapterType::lora;
  adapter.init = AdapterInit::pissa;
  adapter.rank = rank;
  adapter.alpha = alpha;
  adapter.targets = {"q_proj", "v_proj", "up_proj"};
  return adapter;
}

TEST(InitialAdapter, IsTheLargestPartOfTheMatrixInTwoFactorsOfOneSize) {
  const at::Tensor weight = random_tensor({40, 24}, 1);
  const double scale = 0.5;
  const Factors factors = principal_factors(weight, 5, scale);
  EXPECT_EQ(factors.a.sizes(), (at::IntArrayRef{5, 24}));
  EXPECT_EQ(factors.b.sizes(), (at::IntArrayRef{40, 5}));
  const auto [u, s, v] = at::linalg_svd(weight.to(at::kDouble), /*full_matrices=*/false);
  const at::Tensor part = at::mm(u.narrow(1, 0, 5) * s.narrow(0, 0, 5), v.narrow(0, 0, 5));
  EXPECT_LT((at::mm(factors.b, factors.a) * scale - part).abs().max().item<double>(), 1e-5);
  const at::Tensor sizes = s.narrow(0, 0, 5) / scale;
  EXPECT_LT((factors.a.square().sum(1) - sizes).abs().max().item<double>(), 1e-4);
  EXPECT_LT((factors.b.square().sum(0) - sizes).abs().max().item<double>(), 1e-4);
}

TEST(InitialAdapter, OfIterationsIsNearlyTheLargestPart) {
  // Singular values fall by a quarter from one to the next, as few do: enough for a few iterations.
  const auto [u, s, v] = at::linalg_svd(random_tensor({60, 33}, 1), /*full_matrices=*/false);
  const at::Tensor falling = at::pow(0.75, at::arange(33, at::kFloat));
  for (const at::Tensor& weight : {at::mm(u * falling, v), at::mm(u * falling, v).t().contiguous()}) {
    const Factors exact = principal_factors(weight, 4, 2.0);
    const at::Tensor part = at::mm(exact.b, exact.a);
    const auto error = [&](int64_t iterations) {
      const Factors factors = principal_factors(weight, 4, 2.0, iterations);
      EXPECT_EQ(factors.a.sizes(), exact.a.sizes());
      EXPECT_EQ(factors.b.sizes(), exact.b.sizes());
      return (at::mm(factors.b, factors.a) - part).abs().max().item<double>();
    };
    EXPECT_LT(error(8), 1e-5);
    EXPECT_GT(error(1), error(8));
  }
  // As many directions as the matrix has, and not more.
  const Factors whole = principal_factors(random_tensor({9, 5}, 2), 5, 1.0, 2);
  EXPECT_LT((at::mm(whole.b, whole.a) - random_tensor({9, 5}, 2)).abs().max().item<double>(), 1e-5);
}

TEST(InitialAdapter, ChangesAnElementInTheSameWayInEverySlice) {
  const TakenPart part{random_tensor({7, 30}, 1), random_tensor({20, 7}, 2)};
  const at::Tensor weight = random_tensor({20, 30}, 3);
  const at::Tensor whole = weight.clone();
  part.take_from(whole_slice({20, 30}), 0, whole.view({-1}));
  EXPECT_LT((whole + at::mm(part.b, part.a) - weight).abs().max().item<double>(), 1e-5);
  for (const TensorSlice& slice : {TensorSlice{{3, 0}, {9, 30}}, {{0, 11}, {20, 7}}, {{19, 4}, {1, 26}}}) {
    const auto of_slice = [&](const at::Tensor& matrix) {
      return matrix.narrow(0, slice.offsets[0], slice.sizes[0])
          .narrow(1, slice.offsets[1], slice.sizes[1])
          .flatten();
    };
    const at::Tensor expected = of_slice(whole);
    for (const int64_t begin : {int64_t{0}, int64_t{5}, slice.elements() - 1}) {
      const int64_t count = std::min<int64_t>(slice.elements() - begin, 17);
      const at::Tensor values = of_slice(weight).narrow(0, begin, count).clone();
      part.take_from(slice, begin, values);
      EXPECT_TRUE(at::equal(values, expected.narrow(0, begin, count))) << slice_text(slice) << begin;
    }
  }
}

TEST(InitialAdapter, IsWhatTheLoadedWeightsAreWithout) {
  const TempFolder folder;
  const AdapterConfig adapter = pissa_of(3, 6);
  TinyModel tiny(tiny_config(), DType::f32, 7, 0, {}, {}, {}, adapter);
  Tensors weights;
  Tensors factors;
  uint64_t seed = 0;
  for (const NamedTensor& tensor : named_tensors(tiny.spec))
    (is_adapter_tensor(tensor.name) ? factors : weights)[tensor.name] = quarters(tensor.shape, ++seed);
  ASSERT_EQ(factors.size(), 12U);
  tensor_file(folder / "run" / kInitialAdapterFolder / "rank-00001-of-00001.safetensors", factors);
  const auto initial = initial_adapter_of(folder / "run", adapter, tiny.spec);
  const TensorFolder model({tensor_file(folder / "model.safetensors", weights)});
  import_weights(model, tiny.spec, tiny.store, {.tensors = ImportedTensors::base, .taken = &*initial});
  import_weights(initial->factors(), tiny.spec, tiny.store, {.tensors = ImportedTensors::factors});
  for (const NamedTensor& tensor : named_tensors(tiny.store)) {
    const at::Tensor stored =
        tiny.store.unit(tensor.unit).master_view(tensor.parameter).narrow(0, tensor.row, tensor.shape[0]);
    if (is_adapter_tensor(tensor.name)) {
      EXPECT_TRUE(at::equal(stored, factors.at(tensor.name))) << tensor.name;
      continue;
    }
    const std::string prefix = format("{}{}", kAdapterPrefix, tensor.name.substr(0, tensor.name.size() - 7));
    const auto a = factors.find(prefix + ".lora_A.weight");
    const at::Tensor part =
        a == factors.end() ? at::Tensor() : at::mm(factors.at(prefix + ".lora_B.weight") * 2, a->second);
    EXPECT_TRUE(at::equal(part.defined() ? stored + part : stored, weights.at(tensor.name))) << tensor.name;
  }
}

TEST(InitialAdapter, OfOtherModulesIsRefused) {
  const TempFolder folder;
  const AdapterConfig adapter = pissa_of(3, 6);
  const TinyModel tiny(tiny_config(), DType::f32, 7, 0, {}, {}, {}, adapter);
  Tensors factors;
  for (const NamedTensor& tensor : named_tensors(tiny.spec))
    if (is_adapter_tensor(tensor.name)) factors[tensor.name] = quarters(tensor.shape, 1);
  tensor_file(folder / "run" / kInitialAdapterFolder / "rank-00001-of-00001.safetensors", factors);
  AdapterConfig other = adapter;
  other.targets = {"q_proj"};
  const TinyModel fewer(tiny_config(), DType::f32, 7, 0, {}, {}, {}, other);
  EXPECT_CONTAINS(message_of<Error>([&] { initial_adapter_of(folder / "run", other, fewer.spec); }),
                  "do not fit the model", "up_proj");
  EXPECT_CONTAINS(message_of<UsageError>([&] { initial_adapter_of(folder / "none", adapter, tiny.spec); }),
                  "put the folder back");
}

}  // namespace
}  // namespace stepforge::testing
