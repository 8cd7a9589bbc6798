// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/slices.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/linear_product.h"

namespace stepforge {

int64_t slice_size(int64_t tokens, const TensorExchange& exchange) {
  const int64_t degree = exchange.parallel.degree;
  if (tokens % degree != 0)
    throw Error(format("{} tokens cannot be divided into {} equal slices", tokens, degree));
  return tokens / degree;
}

Passes::~Passes() {
  for (const auto& arrival : arrivals_) arrival.wait();
}

void Passes::start(const at::Tensor& outgoing, const at::Tensor& incoming, int64_t distance) {
  arrivals_.push_back(exchange_.pass(outgoing, incoming, distance));
}

void Passes::wait_next() {
  arrivals_.at(waited_++).get();
}

ArrivingSlices::ArrivingSlices(const at::Tensor& own, const TensorExchange& exchange)
    : own_(own),
      exchange_(exchange),
      whole_(at::empty({exchange.parallel.degree * own.size(0), own.size(1)}, own.options())),
      passes_(exchange) {
  for (int64_t distance = 1; distance < exchange.parallel.degree; ++distance)
    passes_.start(own_, whole_.narrow(0, exchange.parallel.part_after(-distance) * own.size(0), own.size(0)),
                  distance);
}

void ArrivingSlices::each(const std::function<void(const at::Tensor& slice, int64_t begin)>& use) {
  const int64_t size = own_.size(0);
  use(own_, exchange_.parallel.part_after(0) * size);
  for (; arrived_ < exchange_.parallel.degree; ++arrived_) {
    passes_.wait_next();
    const int64_t begin = exchange_.parallel.part_after(-arrived_) * size;
    use(whole_.narrow(0, begin, size), begin);
  }
}

const at::Tensor& ArrivingSlices::all() {
  for (; arrived_ < exchange_.parallel.degree; ++arrived_) passes_.wait_next();
  whole_.narrow(0, exchange_.parallel.part_after(0) * own_.size(0), own_.size(0)).copy_(own_);
  return whole_;
}

SumOfSlices::SumOfSlices(const at::Tensor& sum, const TensorExchange& exchange)
    : sum_(sum),
      exchange_(exchange),
      shares_(static_cast<std::size_t>(exchange.parallel.degree)),
      passes_(exchange) {}

void SumOfSlices::start(const std::function<void(int64_t begin, const at::Tensor& share)>& write_share) {
  const auto share_of = [&](int64_t part) -> at::Tensor& {
    return shares_.at(static_cast<std::size_t>(part));
  };
  for (int64_t distance = 1; distance < exchange_.parallel.degree; ++distance) {
    outgoing_.push_back(at::empty_like(sum_));
    write_share(exchange_.parallel.part_after(distance) * sum_.size(0), outgoing_.back());
    at::Tensor& incoming = share_of(exchange_.parallel.part_after(-distance));
    incoming = at::empty_like(sum_);
    passes_.start(outgoing_.back(), incoming, distance);
  }
  share_of(exchange_.parallel.part_after(0)) = sum_;
  write_share(exchange_.parallel.part_after(0) * sum_.size(0), sum_);
}

void SumOfSlices::finish() {
  for (std::size_t i = 0; i < outgoing_.size(); ++i) passes_.wait_next();
  exchange_.add(shares_, sum_);
}

void product_of_slices(const at::Tensor& x, const at::Tensor& weight, const TensorExchange& exchange,
                       const at::Tensor& out) {
  ArrivingSlices(x, exchange).each([&](const at::Tensor& slice, int64_t begin) {
    linear_product(slice, weight, out.narrow(0, begin, slice.size(0)));
  });
}

void product_of_slices_backward(const at::Tensor& gradient, const at::Tensor& x, Parameter& weight,
                                const TensorExchange& exchange, const at::Tensor& out) {
  std::optional<ArrivingSlices> input;
  if (weight.trained()) input.emplace(x, exchange);
  SumOfSlices sum(out, exchange);
  if (out.defined())
    sum.start([&](int64_t begin, const at::Tensor& share) {
      linear_input_gradient(gradient.narrow(0, begin, share.size(0)), weight.value(), at::Tensor(), share);
    });
  if (weight.trained()) weight.add_product(gradient, input->all());
  if (out.defined()) sum.finish();
}

void product_to_slice(const at::Tensor& x, const at::Tensor& weight, const TensorExchange& exchange,
                      const at::Tensor& out) {
  SumOfSlices sum(out, exchange);
  sum.start([&](int64_t begin, const at::Tensor& share) {
    linear_product(x.narrow(0, begin, share.size(0)), weight, share);
  });
  sum.finish();
}

void product_to_slice_backward(const at::Tensor& gradient, const at::Tensor& x, Parameter& weight,
                               const TensorExchange& exchange, const at::Tensor& out) {
  ArrivingSlices slices(gradient, exchange);
  if (out.defined())
    slices.each([&](const at::Tensor& slice, int64_t begin) {
      linear_input_gradient(slice, weight.value(), at::Tensor(), out.narrow(0, begin, slice.size(0)));
    });
  if (weight.trained()) weight.add_product(slices.all(), x);
}

}  // namespace stepforge
