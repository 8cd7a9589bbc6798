// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/adamw.h"

#include <limits>

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

/// Parameters, their gradients and moments, and the numbers of the step.
struct UpdateCase {
  at::Tensor parameter;
  at::Tensor grad;
  at::Tensor first;
  at::Tensor second;  ///< Lion has none
  double finite = 1.0;
  double number = 3.0;
  double lr_factor = 0.7;
  double grad_scale = 0.25;

  int64_t elements() const { return parameter.numel(); }
};

UpdateCase update_case(int64_t elements, at::ScalarType moments) {
  return {.parameter = random_tensor({elements}, 1),
          .grad = random_tensor({elements}, 2),
          .first = (random_tensor({elements}, 3) * 0.1).to(moments),
          .second = (random_tensor({elements}, 4).square() * 0.1).to(moments)};
}

constexpr double kLr = 0.03;
constexpr double kDecay = 0.1;

/// The numbers of a step in device memory.
struct DeviceScalars {
  Guarded all;
  explicit DeviceScalars(const UpdateCase& c)
      : all(at::tensor({c.finite, c.number, c.lr_factor, c.grad_scale}, at::kDouble)) {}
  cuda::UpdateScalars scalars() const {
    const auto* first = all.data<double>();
    return {first, first + 1, first + 2, first + 3};
  }
};

UpdateScalars reference_scalars(const UpdateCase& c) {
  return {scalar(c.finite), scalar(c.number), scalar(c.lr_factor), scalar(c.grad_scale)};
}

/// Parameter and moments after two updates.
std::vector<at::Tensor> adamw_on_device(const UpdateCase& c, int64_t shift) {
  const Guarded parameter(c.parameter, shift);
  const Guarded grad(c.grad, shift);
  const Guarded first(c.first, shift);
  const Guarded second(c.second, shift);
  const DeviceScalars numbers(c);
  const cuda::UpdateOptions options{
      .lr = kLr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = kDecay};
  for (int i = 0; i < 2; ++i) {
    cuda::adamw_update(parameter.data<float>(), grad.data<float>(), dtype_of(c.first), first.data(),
                       second.data(), c.elements(), options, numbers.scalars(), nullptr);
  }
  return {parameter.copy(), first.copy(), second.copy()};
}

std::vector<at::Tensor> adamw_reference(const UpdateCase& c) {
  const at::Tensor parameter = wide(c.parameter);
  const bool narrow = c.first.scalar_type() == at::kBFloat16;
  const at::ScalarType moments = narrow ? at::kBFloat16 : at::kDouble;
  const at::Tensor first = c.first.to(moments, false, /*copy=*/true);
  const at::Tensor second = c.second.to(moments, false, /*copy=*/true);
  const AdamWOptions options{.lr = kLr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = kDecay};
  for (int i = 0; i < 2; ++i) {
    reference::adamw_update(parameter, wide(c.grad), first, second, 0, c.elements(), options,
                            reference_scalars(c));
  }
  return {parameter, first, second};
}

/// Each moment has 4 roundings an update, and the parameter 8, of values that are not larger; bf16 moments one more, which
/// reaches the parameter as a part of lr.
void expect_adamw(const UpdateCase& c, int64_t shift = 0) {
  const auto actual = in_both_orders([&] { return adamw_on_device(c, shift); });
  const auto expected = adamw_reference(c);
  const bool narrow = c.first.scalar_type() == at::kBFloat16;
  const double of_moments = tolerance_of(c.first.scalar_type(), 8);
  expect_close(actual[0], expected[0], narrow ? kLr * kEps16 : 16 * kEps32, "parameter");
  expect_close(actual[1], expected[1], of_moments, "first moment");
  expect_close(actual[2], expected[2], of_moments, "second moment");
}

TEST(CudaAdamW, AgreesWithTheFp64Reference) {
  for (const int64_t elements : {0, 1, 3, 17, 256, 1000, 4099}) {
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16})
      expect_adamw(update_case(elements, moments));
  }
}

TEST(CudaAdamW, MemoryNeedNotBeAligned) {
  for (const at::ScalarType moments : {at::kFloat, at::kBFloat16})
    expect_adamw(update_case(70, moments), /*shift=*/1);
}

TEST(CudaAdamW, MoreElementsThanThreadsAreAllUpdated) {
  // One for each thread of the largest grid, singly, and five more.
  const int64_t elements = cuda::kMaxBlocks * 256 + 5;
  const auto actual = adamw_on_device(update_case(elements, at::kFloat), /*shift=*/1);
  expect_close(actual[0], adamw_reference(update_case(elements, at::kFloat))[0], 16 * kEps32, "parameter");
}

TEST(CudaAdamW, AnUpdateThatIsNotFiniteChangesNothing) {
  UpdateCase c = update_case(100, at::kFloat);
  c.finite = 0.0;
  c.grad.fill_(std::numeric_limits<float>::quiet_NaN());
  const auto actual = in_both_orders([&] { return adamw_on_device(c, 0); });
  expect_same_bits(actual, {c.parameter, c.first, c.second}, " has changed");
}

/// Parameter and momentum.
std::vector<at::Tensor> lion_on_device(const UpdateCase& c, int64_t shift = 0) {
  const Guarded parameter(c.parameter, shift);
  const Guarded grad(c.grad, shift);
  const Guarded momentum(c.first, shift);
  const DeviceScalars numbers(c);
  cuda::lion_update(parameter.data<float>(), grad.data<float>(), momentum.data<float>(), c.elements(),
                    {.lr = kLr, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = kDecay}, numbers.scalars(),
                    nullptr);
  return {parameter.copy(), momentum.copy()};
}

TEST(CudaLion, AgreesWithTheFp64Reference) {
  for (const int64_t elements : {1, 3, 17, 1000, 4099}) {
    for (const int64_t shift : {0, 1}) {
      UpdateCase c = update_case(elements, at::kFloat);
      c.grad[0].zero_();
      c.first[0].zero_();  // no direction
      const auto actual = in_both_orders([&] { return lion_on_device(c, shift); });
      const at::Tensor parameter = wide(c.parameter);
      const at::Tensor momentum = wide(c.first);
      reference::lion_update(parameter, wide(c.grad), momentum,
                             {.lr = kLr, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = kDecay},
                             reference_scalars(c));
      expect_close(actual[0], parameter, 4 * kEps32, "parameter");
      expect_close(actual[1], momentum, 4 * kEps32, "momentum");
    }
  }
}

TEST(CudaLion, AnUpdateThatIsNotFiniteChangesNothing) {
  UpdateCase c = update_case(100, at::kFloat);
  c.finite = 0.0;
  expect_same_bits(lion_on_device(c), {c.parameter, c.first}, " has changed");
}

TEST(CudaLion, NanReachesTheParameter) {
  UpdateCase c = update_case(8, at::kFloat);
  c.grad[5].fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(lion_on_device(c)[0][5].item<float>()));
}

}  // namespace
}  // namespace stepforge::testing
