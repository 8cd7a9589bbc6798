// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/embedding.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/kernel_list.h"
#include "tests/kernels/compare.h"

namespace stepforge::testing {
namespace {

TEST(Embedding, CopiesTheRowsOfTheTokens) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor weight = random_tensor({5, 19}, 1).to(type);
    const at::Tensor out = at::empty({4, 19}, weight.options());
    embedding_forward(int_tensor({4, 0, 4, 2}), weight, out);
    EXPECT_TRUE(at::equal(out[0], weight[4]));
    EXPECT_TRUE(at::equal(out[1], weight[0]));
    EXPECT_TRUE(at::equal(out[2], weight[4]));
    EXPECT_TRUE(at::equal(out[3], weight[2]));
  }
}

TEST(Embedding, AScaleMultipliesRowsAndTheirGradients) {
  const at::Tensor tokens = int_tensor({4, 0, 4, 2});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor weight = random_tensor({5, 19}, 1).to(type);
    const at::Tensor out = at::empty({4, 19}, weight.options());
    embedding_forward(tokens, weight, out, {}, 1.5);
    EXPECT_TRUE(at::equal(out, weight.index_select(0, tokens) * 1.5));
    const at::Tensor grad_out = random_tensor({4, 19}, 2).to(type);
    const auto options = weight.options().dtype(type == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor scaled = at::empty({5, 19}, options);
    embedding_backward(tokens, grad_out, scaled, false, {}, 2.0);
    const at::Tensor plain = at::empty({5, 19}, options);
    embedding_backward(tokens, grad_out, plain, false);
    EXPECT_TRUE(at::equal(scaled, plain * 2.0));
  }
}

// 2^24 + 1 + 1 in fp32 is 2^24 when added one by one, and 2^24 + 2 in the other order.
TEST(Embedding, AddsGradientsInTokenOrder) {
  at::Tensor grad_out = at::empty({3, 40}).fill_(1);
  grad_out[0].fill_(0x1.0p24);
  const at::Tensor grad_weight = at::empty({2, 40}).fill_(9);
  embedding_backward(int_tensor({1, 1, 1}), grad_out, grad_weight, false);
  EXPECT_TRUE(grad_weight[1].eq(0x1.0p24).all().item<bool>());
  EXPECT_TRUE(grad_weight[0].eq(0).all().item<bool>());
  embedding_backward(int_tensor({1, 1, 1}), grad_out.flip(0).contiguous(), grad_weight, false);
  EXPECT_TRUE(grad_weight[1].eq(0x1.0p24 + 2).all().item<bool>());
}

TEST(Embedding, OfNoTokenIsARowOfZerosWithoutAGradient) {
  const at::Tensor tokens = int_tensor({kNoEmbedding, 3, kNoEmbedding, 0});
  // Of the whole vocabulary, and of tokens 2 to 6 of 9.
  for (const VocabularyPart& part : {VocabularyPart{}, VocabularyPart{2, 9}}) {
    const at::Tensor weight = random_tensor({5, 19}, 1);
    const at::Tensor grad_out = random_tensor({4, 19}, 2);
    const bool whole = part.size == 0;
    for (const bool reference : {false, true}) {
      const at::Tensor out = at::empty({4, 19}).fill_(7);
      (reference ? reference::embedding_forward : embedding_forward)(tokens, weight, out, part, 1.0);
      EXPECT_TRUE(at::equal(out[0], at::zeros({19})));
      EXPECT_TRUE(at::equal(out[1], weight[whole ? 3 : 1]));
      EXPECT_TRUE(at::equal(out[2], at::zeros({19})));
      EXPECT_TRUE(at::equal(out[3], whole ? weight[0] : at::zeros({19})));
      at::Tensor expected = at::zeros({5, 19});
      expected[whole ? 3 : 1].copy_(grad_out[1]);
      if (whole) expected[0].copy_(grad_out[3]);
      const at::Tensor gradient = at::empty({5, 19});
      (reference ? reference::embedding_backward : embedding_backward)(tokens, grad_out, gradient,
                                                                       /*accumulate=*/false, part, 1.0);
      EXPECT_TRUE(at::equal(gradient, expected));
    }
  }
}

TEST(Embedding, AgreesWithTheReferenceForAnyNumberOfThreads) {
  std::vector<int32_t> tokens;
  for (int32_t n = 0; n < 500; ++n) tokens.push_back(n * n % 37);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor grad_out = random_tensor({500, 67}, 2).to(type);
    const at::Tensor start = random_tensor({40, 67}, 3);
    const at::Tensor expected = start.to(at::kDouble);
    reference::embedding_backward(int_tensor(tokens), grad_out.to(at::kDouble), expected, true, {}, 1.0);
    expect_same_for_all_threads([&]() -> std::vector<at::Tensor> {
      const at::Tensor grad_weight = start.clone();
      embedding_backward(int_tensor(tokens), grad_out, grad_weight, true);
      expect_close(grad_weight, expected, 32 * kEps32, "grad_weight");
      return {grad_weight};
    });
  }
}

TEST(Embedding, RefusesTokensOutsideTheVocabulary) {
  const at::Tensor weight = random_tensor({5, 8}, 4);
  const at::Tensor out = at::empty({2, 8});
  EXPECT_THROW(embedding_forward(int_tensor({0, 5}), weight, out), Error);
  EXPECT_THROW(embedding_forward(int_tensor({-2, 0}), weight, out), Error);
  EXPECT_THROW(embedding_backward(int_tensor({0, 5}), out, weight, true), Error);
}

}  // namespace
}  // namespace stepforge::testing
