// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/embedding.h"

#include <ATen/ops/argsort.h>

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

constexpr int64_t kVocabulary = 23;

struct EmbeddingCase {
  at::Tensor tokens;
  at::Tensor weight;  ///< of this part
  at::Tensor grad_out;
  at::Tensor old_grad = {};  ///< to which the gradient is added; undefined: it is written
  VocabularyPart part = {};
  double factor = 1.0;
};

EmbeddingCase embedding_case(int64_t count, int64_t width, at::ScalarType type) {
  EmbeddingCase c{.tokens = at::arange(count, at::kInt).mul_(17).remainder_(kVocabulary - 3),
                  .weight = random_tensor({kVocabulary, width}, 1).to(type),
                  .grad_out = random_tensor({count, width}, 2).to(type)};
  for (int64_t n = 3; n < count; n += 7) c.tokens[n].fill_(n % 2 == 0 ? kNoEmbedding : 5);
  return c;
}

EmbeddingCase of_part(EmbeddingCase c) {
  c.part = {.begin = 4, .size = kVocabulary};
  c.weight = c.weight.slice(0, 4, 12).contiguous();
  return c;
}

/// out, grad_weight.
std::vector<at::Tensor> embedding_on_device(const EmbeddingCase& c, int64_t shift = 0) {
  const int64_t count = c.tokens.numel();
  const cuda::EmbeddingTable table{.rows = c.weight.size(0),
                                   .width = c.weight.size(1),
                                   .begin = c.part.begin,
                                   .vocabulary = c.part.size,
                                   .factor = c.factor};
  const Guarded tokens(c.tokens);
  const Guarded order(at::argsort(c.tokens, /*stable=*/true, 0, /*descending=*/false).to(at::kInt));
  const Guarded weight(c.weight, shift);
  const Guarded grad_out(c.grad_out, shift);
  const Guarded out(c.grad_out.sizes(), c.weight.scalar_type(), shift);
  const Guarded new_grad(c.weight.sizes(), at::kFloat, shift);
  const Guarded old_grad(c.old_grad.defined() ? c.old_grad : at::empty({0}, at::kFloat), shift);
  const Guarded& grad = c.old_grad.defined() ? old_grad : new_grad;
  const DType type = dtype_of(c.weight);
  cuda::embedding_forward(type, tokens.data<int32_t>(), count, table, weight.data(), out.data(), nullptr);
  cuda::embedding_backward(type, tokens.data<int32_t>(), order.data<int32_t>(), count, table, grad_out.data(),
                           grad.data<float>(), c.old_grad.defined(), nullptr);
  return {out.copy(), grad.copy()};
}

/// A row is multiplied once, and a gradient is a sum of up to some hundred terms in one order.
void expect_embedding(const EmbeddingCase& c, int64_t shift = 0) {
  const auto actual = in_both_orders([&] { return embedding_on_device(c, shift); });
  const bool accumulate = c.old_grad.defined();
  const at::Tensor out = at::empty(c.grad_out.sizes(), at::kDouble);
  const at::Tensor grad = accumulate ? wide(c.old_grad) : at::empty(c.weight.sizes(), at::kDouble);
  reference::embedding_forward(c.tokens, wide(c.weight), out, c.part, c.factor);
  reference::embedding_backward(c.tokens, wide(c.grad_out), grad, accumulate, c.part, c.factor);
  expect_close(actual[0], out, tolerance_of(c.weight.scalar_type(), 2), "out");
  expect_close(actual[1], grad, 64 * kEps32, "grad_weight");
}

TEST(CudaEmbedding, AgreesWithTheFp64Reference) {
  for (const int64_t width : kWidths) {
    for (const int64_t count : {0, 1, 5, 60}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        EmbeddingCase c = embedding_case(count, width, type);
        expect_embedding(c);
        expect_embedding(of_part(c));
        c.factor = 3.3;
        c.old_grad = random_tensor({kVocabulary, width}, 3);
        expect_embedding(c);
      }
    }
  }
}

TEST(CudaEmbedding, GradientsHaveTheBitsOfTheSumInTokenOrder) {
  const EmbeddingCase c = embedding_case(300, 24, at::kFloat);
  const at::Tensor expected = at::empty({kVocabulary, 24});
  cpu::embedding_backward(c.tokens, c.grad_out, expected, /*accumulate=*/false, {}, 1.0);
  EXPECT_TRUE(same_bits(embedding_on_device(c)[1], expected));
}

TEST(CudaEmbedding, MemoryNeedNotBeAligned) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    expect_embedding(embedding_case(40, 64, type), /*shift=*/1);
}

TEST(CudaEmbedding, MoreTokensThanBlocksAreAllComputed) {
  EmbeddingCase c = embedding_case(cuda::kMaxBlocks + 30, 2, at::kFloat);
  expect_embedding(c);
}

TEST(CudaEmbedding, MoreTokensInATableThanBlocksAreAllCleared) {
  EmbeddingCase c = embedding_case(5, 3, at::kFloat);
  c.weight = at::zeros({cuda::kMaxBlocks * 256 / 3 + 100, 3});
  EXPECT_TRUE(embedding_on_device(c)[1].slice(0, kVocabulary).eq(0).all().item<bool>());
}

TEST(CudaEmbedding, TheRowOfATokenOutsideTheVocabularyIsNan) {
  for (const bool part : {false, true}) {
    EmbeddingCase c = embedding_case(4, 5, at::kFloat);
    c.tokens = at::tensor({5, -2, static_cast<int>(kVocabulary), 6}, at::kInt);
    if (part) c = of_part(c);
    const auto r = embedding_on_device(c);
    EXPECT_TRUE(r[0].slice(0, 1, 3).isnan().all().item<bool>());
    EXPECT_TRUE(r[0][0].isfinite().all().item<bool>());
    EXPECT_TRUE(r[1].isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace stepforge::testing
