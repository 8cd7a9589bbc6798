// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/reduce.h"

#include <array>
#include <limits>

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array kNormTypes = {NormType::l1, NormType::l2, NormType::l3, NormType::inf};

cuda::NormType cuda_type(NormType type) {
  return static_cast<cuda::NormType>(type);
}

at::Tensor terms_on_device(const at::Tensor& values, NormType type) {
  const Guarded flat(values);
  const Guarded partials({reduce_chunks(values.numel())}, at::kDouble);
  cuda::norm_terms_by_chunk(flat.data<float>(), values.numel(), cuda_type(type), partials.data<double>(),
                            nullptr);
  return partials.copy();
}

/// The order of a chunk's sum, one step after the other.
double chunk_in_order(const float* x, int64_t count, NormType type) {
  const auto join = [&](double left, double right) {
    return type != NormType::inf ? left + right : std::max(left, right);
  };
  std::array<double, 16> lanes = {};
  for (int64_t i = 0; i < count; ++i) {
    const double value = std::abs(double{x[i]});
    const double term = type == NormType::l2   ? value * value
                        : type == NormType::l3 ? value * value * value
                                               : value;
    lanes[static_cast<size_t>(i % 16)] = join(lanes[static_cast<size_t>(i % 16)], term);
  }
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) lanes[lane] = join(lanes[lane], lanes[lane + half]);
  }
  return lanes[0];
}

TEST(CudaNormTerms, HaveTheBitsOfTheOrderThatIsPromised) {
  for (const int64_t elements : {0, 1, 3, 17, 256, 1000, 1024, 1025, 4096, 40000}) {
    const at::Tensor values = random_tensor({elements}, 1) * 100;
    for (const NormType type : kNormTypes) {
      const at::Tensor actual =
          in_both_orders([&]() -> std::vector<at::Tensor> { return {terms_on_device(values, type)}; })[0];
      for (int64_t chunk = 0; chunk < actual.numel(); ++chunk) {
        const int64_t first = chunk * kReduceChunk;
        EXPECT_EQ(actual.const_data_ptr<double>()[chunk],
                  chunk_in_order(values.const_data_ptr<float>() + first,
                                 std::min(kReduceChunk, elements - first), type));
      }
      if (type == NormType::l3) continue;  // whose last bit may differ
      const at::Tensor of_cpu = at::empty_like(actual);
      cpu::norm_terms_by_chunk(values, type, of_cpu);
      EXPECT_TRUE(same_bits(actual, of_cpu));
    }
  }
}

TEST(CudaNormTerms, MoreChunksThanBlocksAreAllSummed) {
  const at::Tensor values = at::ones({(cuda::kMaxBlocks * 16 + 3) * kReduceChunk});
  EXPECT_TRUE(terms_on_device(values, NormType::l2).eq(1024.0).all().item<bool>());
}

TEST(CudaNormTerms, NanAndInfinityPropagate) {
  for (const NormType type : kNormTypes) {
    at::Tensor values = random_tensor({3000}, 2);
    values[1500].fill_(kNan);
    values[2500].fill_(-kInfinity);
    const at::Tensor terms = terms_on_device(values, type);
    EXPECT_TRUE(std::isfinite(terms[0].item<double>()));
    EXPECT_TRUE(std::isnan(terms[1].item<double>()));
    EXPECT_EQ(terms[2].item<double>(), kInfinity);
  }
}

TEST(CudaNormTerms, AreJoinedInOrder) {
  for (const int64_t count : {0, 1, 17, 256, 1000}) {
    const at::Tensor values = random_tensor({count}, 3).to(at::kDouble).abs() + 1e-9;
    for (const NormType type : kNormTypes) {
      const at::Tensor actual = in_both_orders([&]() -> std::vector<at::Tensor> {
        const Guarded terms(values);
        const Guarded joined(at::full({1}, 0.3, at::kDouble));
        cuda::join_norm_terms(cuda_type(type), terms.data<double>(), count, joined.data<double>(), nullptr);
        return {joined.copy()};
      })[0];
      const at::Tensor expected = at::full({}, 0.3, at::kDouble);
      cpu::join_norm_terms(type, values, expected);
      EXPECT_EQ(actual.item<double>(), expected.item<double>());
      const Guarded norm({1}, at::kDouble);
      const Guarded terms(actual);
      cuda::norm_of_terms(cuda_type(type), terms.data<double>(), norm.data<double>(), nullptr);
      const at::Tensor expected_norm = at::empty({}, at::kDouble);
      cpu::norm_of_terms(type, expected, expected_norm);
      EXPECT_EQ(norm.tensor().item<double>(), expected_norm.item<double>());
    }
  }
}

TEST(CudaNormTerms, ANanIsTheLargest) {
  for (const int64_t place : {0, 100, 299}) {
    at::Tensor values = random_tensor({300}, 3).to(at::kDouble);
    values[place].fill_(kNan);
    const Guarded terms(values);
    const Guarded joined(at::full({1}, 7.0, at::kDouble));
    cuda::join_norm_terms(cuda::NormType::inf, terms.data<double>(), 300, joined.data<double>(), nullptr);
    EXPECT_TRUE(std::isnan(joined.tensor().item<double>()));
  }
}

TEST(CudaSums, AreFormedElementByElement) {
  for (const int64_t count : {0, 1, 3, 255, 257, 5000}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor values = (random_tensor({count}, 4) * 1e4).to(type);
      const at::Tensor actual = in_both_orders([&]() -> std::vector<at::Tensor> {
        const Guarded flat(values);
        const Guarded sum({1}, at::kDouble);
        cuda::sum_in_order(dtype_of(values), flat.data(), count, sum.data<double>(), nullptr);
        return {sum.copy()};
      })[0];
      double expected = 0.0;
      for (int64_t i = 0; i < count; ++i) expected += values[i].item<double>();
      EXPECT_EQ(actual.item<double>(), expected);
    }
  }
}

bool finite_on_device(const at::Tensor& values) {
  const Guarded flat(values);
  const Guarded finite({1}, at::kDouble);
  cuda::all_finite(flat.data<float>(), values.numel(), finite.data<double>(), nullptr);
  return finite.tensor().item<double>() == 1.0;
}

TEST(CudaAllFinite, FindsOneBadElementAnywhere) {
  for (const int64_t elements : {0, 1, 17, 1000}) EXPECT_TRUE(finite_on_device(random_tensor({elements}, 5)));
  for (const int64_t place : {0, 255, 256, 999}) {
    for (const double bad : {kNan, kInfinity, -kInfinity}) {
      at::Tensor values = random_tensor({1000}, 5);
      values[place].fill_(bad);
      EXPECT_FALSE(finite_on_device(values));
    }
  }
  at::Tensor many = at::zeros({cuda::kMaxBlocks * 256 + 9});
  EXPECT_TRUE(finite_on_device(many));
  many[-1].fill_(kNan);
  EXPECT_FALSE(finite_on_device(many));
}

/// What run(first, second, result) writes to the result.
template <typename Run>
double number_on_device(double first, double second, const Run& run) {
  const Guarded one(at::full({1}, first, at::kDouble));
  const Guarded two(at::full({1}, second, at::kDouble));
  const Guarded result({1}, at::kDouble);
  run(one.data<double>(), two.data<double>(), result.data<double>());
  return result.tensor().item<double>();
}

TEST(CudaScalars, AreThoseOfTheCpu) {
  const auto expect_same = [](double actual, const std::function<void(const at::Tensor&)>& on_cpu) {
    const at::Tensor expected = at::empty({}, at::kDouble);
    on_cpu(expected);
    EXPECT_EQ(actual, expected.item<double>());
  };
  const at::Tensor values = random_tensor({700}, 6).to(at::kDouble);
  const Guarded on_device(values);
  for (const double number : {0.0, 3.0, 0.125, 1e300, kInfinity, kNan}) {
    expect_same(
        number_on_device(number, 0,
                         [](auto* in, auto*, auto* out) { cuda::reciprocal_or_zero(in, out, nullptr); }),
        [&](const at::Tensor& out) { cpu::reciprocal_or_zero(scalar(number), out); });
    expect_same(number_on_device(number, 0,
                                 [&](auto* in, auto*, auto* out) {
                                   cuda::mean_in_order(on_device.data<double>(), 700, in, out, nullptr);
                                 }),
                [&](const at::Tensor& out) { cpu::mean_in_order(values, scalar(number), out); });
    for (const double max_norm : {0.0, 1.0}) {
      expect_same(number_on_device(number, 0,
                                   [&](auto* in, auto*, auto* out) {
                                     cuda::clip_coefficient(in, max_norm, out, nullptr);
                                   }),
                  [&](const at::Tensor& out) { cpu::clip_coefficient(scalar(number), max_norm, out); });
    }
    for (const double other : {1.0, kInfinity, kNan}) {
      expect_same(number_on_device(number, other,
                                   [](auto* in, auto* and_in, auto* out) {
                                     cuda::flag_if_finite(in, and_in, out, nullptr);
                                   }),
                  [&](const at::Tensor& out) { cpu::flag_if_finite(scalar(number), scalar(other), out); });
    }
  }
}

}  // namespace
}  // namespace stepforge::testing
