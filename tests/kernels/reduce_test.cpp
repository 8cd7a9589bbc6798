// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/reduce.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "stepforge/base/error.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr std::array kAllTypes = {NormType::l1, NormType::l2, NormType::l3, NormType::inf};

double terms(const at::Tensor& flat, NormType type) {
  std::vector<double> partials(static_cast<size_t>(reduce_chunks(flat.numel())));
  norm_terms_by_chunk(flat, type, partials);
  double joined = 0.0;
  for (const double partial : partials) joined = join_norm_terms(type, joined, partial);
  return joined;
}

double sum_of_squares(const at::Tensor& flat) {
  return terms(flat, NormType::l2);
}

TEST(SumOfSquares, AgreesWithFp64) {
  for (const int64_t elements : {0, 1, 15, 1024, 1025, 100003}) {
    const at::Tensor flat = random_tensor({elements}, 1);
    const double expected = flat.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sum_of_squares(flat), expected, 1e-13 * expected) << elements;
  }
}

TEST(Norm, EachTypeAgreesWithTheReferenceAndWithTorch) {
  for (const int64_t elements : {1, 15, 1024, 1025, 100003}) {
    const at::Tensor flat = random_tensor({elements}, 7);
    const at::Tensor exact = flat.to(at::kDouble);
    const std::array expected = {exact.norm(1), exact.norm(2), exact.norm(3),
                                 exact.norm(std::numeric_limits<double>::infinity())};
    for (size_t i = 0; i < kAllTypes.size(); ++i) {
      const double norm = norm_of_terms(kAllTypes.at(i), terms(flat, kAllTypes.at(i)));
      EXPECT_NEAR(norm, expected.at(i).item<double>(), 1e-13 * norm) << i;
      std::vector<double> reference(static_cast<size_t>(reduce_chunks(elements)));
      norm_terms_by_chunk_reference(flat, kAllTypes.at(i), reference);
      double joined = 0.0;
      for (const double partial : reference) joined = join_norm_terms(kAllTypes.at(i), joined, partial);
      EXPECT_NEAR(norm_of_terms(kAllTypes.at(i), joined), norm, 1e-13 * norm) << i;
    }
  }
}

TEST(Norm, NanAndInfinityPropagateInEachType) {
  for (const NormType type : kAllTypes) {
    for (const int64_t index : {0, 17, 2999}) {
      at::Tensor flat = random_tensor({3000}, 4);
      flat[index] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(norm_of_terms(type, terms(flat, type)), std::numeric_limits<double>::infinity());
      flat[index] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(norm_of_terms(type, terms(flat, type)))) << index;
    }
  }
}

TEST(SumOfSquares, ShardsThatEndOnChunksGiveTheSameBits) {
  const at::Tensor flat = random_tensor({5000}, 2);
  std::vector<double> whole(5);
  std::vector<double> pieces(5);
  norm_terms_by_chunk(flat, NormType::l2, whole);
  norm_terms_by_chunk(flat.slice(0, 0, 2048), NormType::l2, std::span(pieces).subspan(0, 2));
  norm_terms_by_chunk(flat.slice(0, 2048), NormType::l2, std::span(pieces).subspan(2));
  EXPECT_EQ(whole, pieces);
  double sum = 0;
  for (const double partial : whole) sum += partial;
  EXPECT_EQ(sum, sum_of_squares(flat));
}

TEST(SumOfSquares, DoesNotDependOnTheNumberOfThreads) {
  const at::Tensor flat = random_tensor({200000}, 3);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = sum_of_squares(flat);
  at::set_num_threads(3);
  EXPECT_EQ(sum_of_squares(flat), one);
  at::set_num_threads(before);
}

TEST(SumOfSquares, NanAndInfinityPropagate) {
  at::Tensor flat = random_tensor({3000}, 4);
  flat[2999] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sum_of_squares(flat), std::numeric_limits<double>::infinity());
  flat[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares(flat)));
}

TEST(SumOfSquares, LargeNumbersDoNotOverflow) {
  EXPECT_EQ(sum_of_squares(at::empty({4}).fill_(0x1.0p100)), 4 * 0x1.0p200);
}

TEST(SumOfSquares, RefusesTheWrongNumberOfPartials) {
  std::vector<double> partials(1);
  EXPECT_THROW(norm_terms_by_chunk(random_tensor({1025}, 5), NormType::l2, partials), Error);
}

TEST(AllFinite, SeesNanAndBothInfinitiesAnywhere) {
  for (const int64_t index : {0, 7, 40000, 49999}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      at::Tensor flat = random_tensor({50000}, 6);
      flat[0] = std::numeric_limits<float>::max();
      EXPECT_TRUE(all_finite(flat));
      flat[index] = bad;
      EXPECT_FALSE(all_finite(flat)) << bad << " at " << index;
      EXPECT_FALSE(all_finite_reference(flat));
    }
  }
}

TEST(SumInOrder, AddsFirstToLastInFp64) {
  const at::Tensor flat = at::empty({3});
  flat[0] = 0x1.0p60F;
  flat[1] = -0x1.0p60F;
  flat[2] = 1.0F;
  EXPECT_EQ(sum_in_order(flat), 1.0);
}

}  // namespace
}  // namespace stepforge::testing
