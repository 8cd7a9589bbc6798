// SPDX-License-Identifier: Apache-2.0
// Times grouped products over experts against dense products of the same total: `bench_experts [rounds [part of a name]]`.
// Least time of the rounds, which alternate between the two, or of those that fit in some seconds; the ratio is the share of
// the dense product's speed that is reached. Not processor time: that of other threads is counted at timer ticks only.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/kernels/grouped_product.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

/// No round begins after so many seconds: some processors take seconds for one product of bf16.
constexpr double kMostSeconds = 3.0;

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Which of them, and how often.
struct Choice {
  int rounds = 20;
  std::string part;
};

void compare(const std::string& name, const Choice& choice, double flops,
             const std::function<void()>& grouped, const std::function<void()>& dense) {
  if (name.find(choice.part) == std::string::npos) return;
  double ours = 1e9;
  double theirs = 1e9;
  double spent = 0.0;
  for (int round = 0; round < choice.rounds && spent < kMostSeconds; ++round) {
    const double of_grouped = seconds_of(grouped);
    const double of_dense = seconds_of(dense);
    ours = std::min(ours, of_grouped);
    theirs = std::min(theirs, of_dense);
    spent += of_grouped + of_dense;
  }
  std::printf("%-56s %8.2f ms  %5.0f GF/s   dense %8.2f ms   ratio %.2f\n", name.c_str(), ours * 1e3,
              1e-9 * flops / ours, theirs * 1e3, theirs / ours);
  std::fflush(stdout);
}

/// Sizes from half to one and a half times the mean, the same in every run.
std::vector<int64_t> uneven_offsets(int64_t experts, int64_t rows) {
  std::vector<int64_t> offsets = {0};
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t mean = rows / experts;
    offsets.push_back(offsets.back() + mean / 2 + (e * 7919) % (mean + 1));
  }
  for (int64_t& offset : offsets) offset = offset * rows / offsets.back();
  offsets.back() = rows;
  return offsets;
}

void products(int64_t experts, int64_t rows, int64_t in, int64_t out, at::ScalarType type,
              const Choice& choice) {
  const std::vector<int64_t> offsets = uneven_offsets(experts, rows);
  const at::Tensor x = at::randn({rows, in}).to(type);
  const at::Tensor weights = at::randn({experts, out, in}).to(type);
  const at::Tensor one = weights.select(0, 0);
  at::Tensor y = at::randn({rows, out}).to(type);
  at::Tensor grad_x = at::empty_like(x);
  const at::Tensor grad_weights = at::empty({experts, out, in});
  at::Tensor grad_one = grad_weights.select(0, 0);
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  const std::string name = format("{} experts, {} threads, {} {} x {} -> {}", experts, at::get_num_threads(),
                                  type == at::kFloat ? "fp32" : "bf16", rows, in, out);
  compare(
      name + " input", choice, flops, [&] { grouped_input_gradient(y, weights, offsets, grad_x); },
      [&] { at::mm_out(grad_x, y, one); });
  compare(
      name + " weight", choice, flops, [&] { grouped_weight_gradient(y, x, offsets, grad_weights, false); },
      [&] {
        if (type == at::kFloat) {
          at::mm_out(grad_one, y.t(), x);
        } else {
          write_or_add(grad_one, at::mm(y.t(), x), false);
        }
      });
  compare(
      name + " forward", choice, flops, [&] { grouped_product(x, weights, offsets, y); },
      [&] { at::mm_out(y, x, one.t()); });
}

}  // namespace
}  // namespace stepforge

int main(int argc, char** argv) {
  stepforge::install_cpu_allocator();  // as in training
  const at::NoGradGuard no_grad;
  stepforge::Choice choice;
  if (argc > 1) choice.rounds = std::atoi(argv[1]);
  if (argc > 2) choice.part = argv[2];
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const int64_t experts : {8, 64}) {
        stepforge::products(experts, 4096, 512, 1408, type, choice);
        stepforge::products(experts, 4096, 1408, 512, type, choice);
      }
    }
  }
}
