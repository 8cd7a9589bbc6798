// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/coded_factors.h"

#include <map>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

UnitSpec coded_unit(std::vector<ParameterSpec> parameters) {
  return {.name = "unit",
          .parameters = std::move(parameters),
          .trainable = false,
          .master = DType::u8,
          .code = WeightCode::nf4,
          .coded_factors = true};
}

/// Two tensors in a parameter, columns of a matrix as a tensor-parallel rank has them, and parts of some matrices of a stack.
UnitSpec unit_of_parts() {
  return coded_unit({{"qk", {230, 256}, {{"q", "hf.q", 201, {}}, {"k", "hf.k", 29, {}}}},
                     {"down", {40, 128}, {{"weight", "hf.down", 40, {}, {0, 128}, {40, 512}}}},
                     {"experts", {2, 24, 128}, {{"weight", "hf.experts", 2, {}, {2, 4, 0}, {5, 32, 256}}}}});
}

/// The factors of all blocks of a tensor, from its values.
TensorFactors factors_of(int64_t elements) {
  TensorFactors factors(elements);
  factors.add(0, random_tensor({elements}, static_cast<uint64_t>(elements)));
  return factors;
}

/// Compares the factors of a rank's shard with those of whole tensors, block by block; returns the number of blocks.
int64_t compare_shard(const UnitSpec& unit, const ShardLayout& shards, int rank) {
  const CodedFactors coded(unit, shards, rank);
  const at::Tensor stored = at::zeros({unit.stored_bytes(shards.shard_size())}, at::kByte);
  std::map<int64_t, float> expected;  // by block of the shard
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ParameterSpec& parameter = unit.parameters[i];
    int64_t row = 0;
    for (size_t s = 0; s < parameter.sub_tensors.size(); ++s) {
      const TensorFactors factors = factors_of(parameter.tensor_elements(s));
      coded.store(i, row, factors, stored);
      const FactorCodes made = quantize_factors(factors.all());
      const at::Tensor whole = at::empty({made.codes.numel()}, at::kFloat);
      dequantize_factors(made.codes, made.scales, {}, whole);
      const int64_t rows = parameter.sub_tensors[s].rows;
      for (ShardSlice held : shards.slices(rank, i, row, row + rows)) {
        held.slice = moved(std::move(held.slice), parameter.slice_of(s).offsets);
        for (const ShardRun& run : runs_of(parameter.tensor_shape(s), held))
          for (int64_t at = 0; at < run.count; at += kCodeBlock)
            expected[(run.local + at) / kCodeBlock] = whole[(run.element + at) / kCodeBlock].item<float>();
      }
      row += rows;
    }
  }
  const at::Tensor factors = coded.decode(stored).factors;
  for (int64_t block = 0; block < factors.numel(); ++block) {
    const auto found = expected.find(block);
    EXPECT_EQ(factors[block].item<float>(), found == expected.end() ? 0.0F : found->second)
        << "block " << block << " of rank " << rank;
  }
  return static_cast<int64_t>(expected.size());
}

TEST(CodedFactors, AreThoseOfWholeTensorsWhateverPartARankHolds) {
  const UnitSpec unit = unit_of_parts();
  for (const PartitionKind kind : {PartitionKind::flat, PartitionKind::by_tensor, PartitionKind::by_dim}) {
    for (const int ranks : {1, 2, 3}) {
      const ShardLayout shards(unit, {kind}, ranks);
      int64_t blocks = 0;
      for (int rank = 0; rank < ranks; ++rank) blocks += compare_shard(unit, shards, rank);
      EXPECT_EQ(blocks, unit.elements() / kCodeBlock) << partition_text({kind}) << " on " << ranks;
    }
  }
}

TEST(CodedFactors, CodesOfWeightsAreThoseOfBlocksAlone) {
  const UnitSpec unit = coded_unit({{"matrix", {16, 64}, {{"weight", "hf", 16, {}}}}});
  const at::Tensor values = random_tensor({1024}, 3);
  const at::Tensor stored = at::zeros({unit.stored_bytes(1024)}, at::kByte);
  const CodedFactors coded(unit, ShardLayout(unit, {}, 1), 0);
  coded.store_weights(0, values.narrow(0, 0, 512), stored);
  coded.store_weights(512, values.narrow(0, 512, 512), stored);
  const at::Tensor plain = at::zeros({kind_of(WeightCode::nf4).bytes(1024)}, at::kByte);
  quantize_weights(WeightCode::nf4, values, plain);
  EXPECT_TRUE(at::equal(coded.decode(stored).codes, coded_weights(WeightCode::nf4, plain).codes));
}

TEST(CodedFactors, AWeightNeedsSlightlyMoreThanFourBits) {
  const UnitSpec unit = coded_unit({{"matrix", {512, 256}, {{"weight", "hf", 512, {}}}}});
  EXPECT_EQ(unit.stored_bytes(512 * 256), 512 * 256 / 2 + 512 * 256 / 64 + 4 * (1 + 512 * 256 / 64 / 256));
}

TEST(CodedFactors, PartsOfBlocksAreRefused) {
  const UnitSpec unit = coded_unit({{"matrix", {8, 128}, {{"weight", "hf", 8, {}}}}});
  const ShardLayout columns(unit, {PartitionKind::by_dim, 1}, 3);
  EXPECT_CONTAINS(message_of<UsageError>([&] { CodedFactors(unit, columns, 0); }), "unit",
                  "parts of blocks of 64");
}

}  // namespace
}  // namespace stepforge::testing
