// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/reduce.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include <ATen/ops/arange.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

constexpr std::array kAllTypes = {NormType::l1, NormType::l2, NormType::l3, NormType::inf};

at::Tensor partials_of(const at::Tensor& flat, NormType type) {
  at::Tensor partials = at::empty({reduce_chunks(flat.numel())}, at::kDouble);
  norm_terms_by_chunk(flat, type, partials);
  return partials;
}

at::Tensor joined_terms(const at::Tensor& flat, NormType type) {
  at::Tensor joined = scalar(0);
  join_norm_terms(type, partials_of(flat, type), joined);
  return joined;
}

double norm_of(const at::Tensor& flat, NormType type) {
  const at::Tensor norm = scalar(-1);
  norm_of_terms(type, joined_terms(flat, type), norm);
  return norm.item<double>();
}

double sum_of_squares(const at::Tensor& flat) {
  return joined_terms(flat, NormType::l2).item<double>();
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
      const double norm = norm_of(flat, kAllTypes.at(i));
      EXPECT_NEAR(norm, expected.at(i).item<double>(), 1e-13 * norm) << i;
      const at::Tensor chunks = at::empty({reduce_chunks(elements)}, at::kDouble);
      reference::norm_terms_by_chunk(flat, kAllTypes.at(i), chunks);
      const at::Tensor reference = scalar(0);
      reference::join_norm_terms(kAllTypes.at(i), chunks, reference);
      reference::norm_of_terms(kAllTypes.at(i), reference, reference);
      EXPECT_NEAR(reference.item<double>(), norm, 1e-13 * norm) << i;
    }
  }
}

/// Longer than a slice of the references.
TEST(Norm, ReferencesOfALongBufferSeeAllOfIt) {
  constexpr int64_t kLong = (int64_t{1} << 22) + 1500;
  const at::Tensor flat = random_tensor({kLong}, 7);
  for (const NormType type : kAllTypes) {
    const at::Tensor chunks = at::empty({reduce_chunks(kLong)}, at::kDouble);
    reference::norm_terms_by_chunk(flat, type, chunks);
    expect_close(chunks, partials_of(flat, type), 1e-14, "terms");
  }
  EXPECT_TRUE(reference::all_finite(flat));
  flat[kLong - 1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(reference::all_finite(flat));
}

TEST(Norm, NanAndInfinityPropagateInEachType) {
  for (const NormType type : kAllTypes) {
    for (const int64_t index : {0, 17, 2999}) {
      at::Tensor flat = random_tensor({3000}, 4);
      flat[index] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(norm_of(flat, type), std::numeric_limits<double>::infinity());
      flat[index] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(std::isnan(norm_of(flat, type))) << index;
    }
  }
}

TEST(SumOfSquares, ShardsThatEndOnChunksGiveTheSameBits) {
  const at::Tensor flat = random_tensor({5000}, 2);
  const at::Tensor whole = partials_of(flat, NormType::l2);
  const at::Tensor pieces = at::empty({5}, at::kDouble);
  norm_terms_by_chunk(flat.slice(0, 0, 2048), NormType::l2, pieces.slice(0, 0, 2));
  norm_terms_by_chunk(flat.slice(0, 2048), NormType::l2, pieces.slice(0, 2));
  EXPECT_TRUE(at::equal(whole, pieces));
  double sum = 0;
  for (int64_t i = 0; i < 5; ++i) sum += whole[i].item<double>();
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
  const at::Tensor partials = at::empty({1}, at::kDouble);
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
      EXPECT_FALSE(reference::all_finite(flat));
    }
  }
}

TEST(SumInOrder, AddsFirstToLastInFp64) {
  const at::Tensor flat = at::empty({3});
  flat[0] = 0x1.0p60F;
  flat[1] = -0x1.0p60F;
  flat[2] = 1.0F;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor sum = scalar(7);
    sum_in_order(flat.to(type), sum);
    EXPECT_EQ(sum.item<double>(), 1.0);
  }
  const at::Tensor reference = scalar(7);
  reference::sum_in_order(at::arange(10, at::kFloat), reference);
  EXPECT_EQ(reference.item<double>(), 45.0);
}

TEST(JoinNormTerms, ContinuesFromWhatIsJoinedSoFarInOrder) {
  const at::Tensor terms = at::empty({3}, at::kDouble);
  terms[0] = -0x1.0p60;
  terms[1] = 1.0;
  terms[2] = 2.0;
  const at::Tensor sum = scalar(0x1.0p60);
  join_norm_terms(NormType::l1, terms, sum);
  EXPECT_EQ(sum.item<double>(), 3.0);
  const at::Tensor largest = scalar(5);
  join_norm_terms(NormType::inf, terms, largest);
  EXPECT_EQ(largest.item<double>(), 5.0);
  terms[0] = std::nan("");
  join_norm_terms(NormType::inf, terms, largest);
  EXPECT_TRUE(std::isnan(largest.item<double>()));
}

}  // namespace
}  // namespace stepforge::testing
