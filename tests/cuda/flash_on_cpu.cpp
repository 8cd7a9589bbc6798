// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/flash_on_cpu.h"

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/library.h>

namespace stepforge::testing {

FlashCalls& flash_calls() {
  static FlashCalls calls;
  return calls;
}

namespace {

using OptionalInt = std::optional<c10::SymInt>;
using OptionalTensor = std::optional<at::Tensor>;

struct FlashDocument {
  int64_t query = 0;  // its first one
  int64_t queries = 0;
  int64_t key = 0;
  int64_t keys = 0;
};

/// The arguments, widened, and what libtorch's own functions check of them.
class FlashProblem {
 public:
  FlashProblem(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& query_bounds,
               const at::Tensor& key_bounds, int64_t longest_queries, int64_t longest_keys, double dropout_p,
               bool is_causal, std::optional<double> scale, const OptionalInt& window_left,
               const OptionalInt& window_right)
      : q_(q.to(at::kDouble).contiguous()),
        k_(k.to(at::kDouble).contiguous()),
        v_(v.to(at::kDouble).contiguous()),
        scale_(scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(2))))),
        left_(window_left ? window_left->expect_int() : -1),
        right_(is_causal      ? 0
               : window_right ? window_right->expect_int()
                              : -1),
        group_(q.size(1) / k.size(1)) {
    EXPECT_EQ(dropout_p, 0.0);
    EXPECT_GE(longest_queries, 2) << "one query in each document makes them heads of one";
    EXPECT_EQ(q.size(1) % k.size(1), 0);
    EXPECT_TRUE(q.size(2) % 8 == 0 && q.size(2) <= 256);
    EXPECT_EQ(k.sizes(), v.sizes());
    for (const at::Tensor& rows : {q, k, v}) expect_loadable(rows);
    add_documents(query_bounds, key_bounds);
    for (const FlashDocument& document : documents) {
      EXPECT_LE(document.queries, longest_queries);
      EXPECT_LE(document.keys, longest_keys);
    }
  }

  static void expect_loadable(const at::Tensor& rows) {
    EXPECT_EQ(rows.dim(), 3);
    EXPECT_EQ(rows.stride(2), 1);
    if (rows.element_size() != 2) return;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16, 0U);
    EXPECT_EQ(rows.stride(0) % 8, 0);
  }

  /// Calls body(head, query, the keys that it sees with their scores) of a document.
  template <typename Body>
  void each_query(const FlashDocument& document, const Body& body) const {
    for (int64_t h = 0; h < q_.size(1); ++h) {
      for (int64_t i = 0; i < document.queries; ++i) {
        const int64_t diagonal =
            i + document.keys - document.queries;  // the last key belongs to the last query
        const int64_t first = left_ < 0 ? 0 : std::max<int64_t>(0, diagonal - left_);
        const int64_t last = right_ < 0 ? document.keys - 1 : std::min(document.keys - 1, diagonal + right_);
        std::vector<std::pair<int64_t, double>> scores;
        for (int64_t j = first; j <= last; ++j) {
          const int64_t key = document.key + j;
          scores.emplace_back(key, scale_ * dot(row(q_, document.query + i, h), row(k_, key, h / group_)));
        }
        body(h, document.query + i, scores);
      }
    }
  }

  double* row(const at::Tensor& tensor, int64_t row, int64_t head) const {
    return tensor.mutable_data_ptr<double>() + (row * tensor.size(1) + head) * tensor.size(2);
  }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < width(); ++d) sum += a[d] * b[d];
    return sum;
  }
  /// to += factor from
  void add(double factor, const double* from, double* to) const {
    for (int64_t d = 0; d < width(); ++d) to[d] += factor * from[d];
  }
  int64_t width() const { return q_.size(2); }
  int64_t group() const { return group_; }
  double scale() const { return scale_; }
  const at::Tensor& q() const { return q_; }
  const at::Tensor& k() const { return k_; }
  const at::Tensor& v() const { return v_; }

  std::vector<FlashDocument> documents;

 private:
  void add_documents(const at::Tensor& query_bounds, const at::Tensor& key_bounds) {
    for (const at::Tensor& bounds : {query_bounds, key_bounds}) {
      ASSERT_TRUE(bounds.scalar_type() == at::kInt && bounds.is_contiguous() && bounds.dim() == 1);
      ASSERT_EQ(bounds[0].item<int>(), 0);
    }
    ASSERT_EQ(query_bounds.sizes(), key_bounds.sizes());
    ASSERT_EQ(query_bounds[-1].item<int>(), q_.size(0));
    ASSERT_EQ(key_bounds[-1].item<int>(), k_.size(0));
    for (int64_t i = 0; i + 1 < query_bounds.size(0); ++i) {
      const int64_t query = query_bounds[i].item<int>();
      const int64_t key = key_bounds[i].item<int>();
      documents.push_back(
          {query, query_bounds[i + 1].item<int>() - query, key, key_bounds[i + 1].item<int>() - key});
      ASSERT_TRUE(documents.back().queries >= 0 && documents.back().keys >= 0);
    }
  }

  at::Tensor q_;
  at::Tensor k_;
  at::Tensor v_;
  double scale_;
  int64_t left_;
  int64_t right_;
  int64_t group_;
};

void set_nan(const at::Tensor& rows, int64_t begin, int64_t count) {
  rows.narrow(0, begin, count).fill_(std::numeric_limits<double>::quiet_NaN());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptionalTensor& cum_seq_q,
    const OptionalTensor& cum_seq_k, c10::SymInt max_q, c10::SymInt max_k, double dropout_p, bool is_causal,
    bool return_debug_mask, std::optional<double> scale, OptionalInt window_size_left,
    OptionalInt window_size_right, const OptionalTensor& seqused_k, const OptionalTensor& alibi_slopes) {
  EXPECT_FALSE(return_debug_mask || seqused_k.has_value() || alibi_slopes.has_value());
  const FlashProblem problem(query, key, value, cum_seq_q.value(), cum_seq_k.value(), max_q.expect_int(),
                             max_k.expect_int(), dropout_p, is_causal, scale, window_size_left,
                             window_size_right);
  FlashCalls& calls = flash_calls();
  ++calls.forward;
  calls.q = query;
  calls.k = key;
  calls.v = value;
  calls.documents = static_cast<int64_t>(problem.documents.size());
  const at::Tensor out = at::zeros(query.sizes(), at::kDouble);
  const at::Tensor lse =
      at::full({query.size(1), query.size(0)}, std::numeric_limits<double>::infinity(), at::kDouble);
  for (const FlashDocument& document : problem.documents) {
    problem.each_query(document, [&](int64_t h, int64_t i, const auto& scores) {
      if (scores.empty()) return;
      double sum = 0;
      for (const auto& [j, score] : scores) sum += std::exp(score);
      for (const auto& [j, score] : scores)
        problem.add(std::exp(score) / sum, problem.row(problem.v(), j, h / problem.group()),
                    problem.row(out, i, h));
      lse.mutable_data_ptr<double>()[h * query.size(0) + i] = std::log(sum);
    });
  }
  const at::Tensor none = at::empty({0}, at::kLong);
  return {out.to(query.scalar_type()), lse.to(query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
          none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor& cum_seq_q,
    const at::Tensor& cum_seq_k, c10::SymInt max_q, c10::SymInt max_k, double dropout_p, bool is_causal,
    const at::Tensor& /*rng_state*/, const at::Tensor& /*unused*/, std::optional<double> scale,
    OptionalInt window_size_left, OptionalInt window_size_right) {
  const FlashProblem problem(query, key, value, cum_seq_q, cum_seq_k, max_q.expect_int(), max_k.expect_int(),
                             dropout_p, is_causal, scale, window_size_left, window_size_right);
  ++flash_calls().backward;
  for (const at::Tensor& rows : {out, grad_out}) {
    FlashProblem::expect_loadable(rows);
    EXPECT_TRUE(rows.is_contiguous() && rows.sizes() == query.sizes());
  }
  EXPECT_TRUE(logsumexp.is_contiguous() && logsumexp.size(0) == query.size(1) &&
              logsumexp.size(1) == query.size(0));
  EXPECT_EQ(logsumexp.scalar_type(), query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor grad = grad_out.to(at::kDouble);
  const at::Tensor result = out.to(at::kDouble);
  const at::Tensor lse = logsumexp.to(at::kDouble);
  const at::Tensor grad_q = at::zeros(query.sizes(), at::kDouble);
  const at::Tensor grad_k = at::zeros(key.sizes(), at::kDouble);
  const at::Tensor grad_v = at::zeros(value.sizes(), at::kDouble);
  for (const FlashDocument& document : problem.documents) {
    if (document.keys == 0) set_nan(grad_q, document.query, document.queries);
    if (document.queries == 0) {
      set_nan(grad_k, document.key, document.keys);
      set_nan(grad_v, document.key, document.keys);
    }
    problem.each_query(document, [&](int64_t h, int64_t i, const auto& scores) {
      const int64_t of_group = h / problem.group();
      const double* const gradient = problem.row(grad, i, h);
      const double delta = problem.dot(gradient, problem.row(result, i, h));
      for (const auto& [j, score] : scores) {
        const double p = std::exp(score - lse.const_data_ptr<double>()[h * query.size(0) + i]);
        const double of_score =
            p * (problem.dot(gradient, problem.row(problem.v(), j, of_group)) - delta) * problem.scale();
        problem.add(of_score, problem.row(problem.k(), j, of_group), problem.row(grad_q, i, h));
        problem.add(of_score, problem.row(problem.q(), i, h), problem.row(grad_k, j, of_group));
        problem.add(p, gradient, problem.row(grad_v, j, of_group));
      }
    });
  }
  const at::ScalarType type = query.scalar_type();
  return {grad_q.to(type), grad_k.to(type), grad_v.to(type)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", &flash_forward);
  library.impl("_flash_attention_backward", &flash_backward);
}

}  // namespace stepforge::testing
