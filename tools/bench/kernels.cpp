// SPDX-License-Identifier: Apache-2.0
// Times the fused kernels against libtorch's on this machine: `bench_kernels [threads]`. Best of 100 rounds. Prints a line of JSON for
// each, which tools/bench/roofline.py shows as a table.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/adamw.h"
#include "stepforge/kernels/attention.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/kernels/rms_norm.h"
#include "stepforge/kernels/swiglu.h"

namespace stepforge {
namespace {

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// What a kernel does at least: operations, and bytes of its operands, each read or written once.
struct Work {
  double flops = 0;
  double bytes = 0;
  bool bf16 = false;  ///< whether its products are of bf16
};

double bytes_of(std::initializer_list<at::Tensor> tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  return bytes;
}

/// theirs: 0 for none.
void print(const std::string& name, const Work& work, double ours, double theirs) {
  std::printf(R"({"name": "%s", "ms": %.4f, "flops": %.0f, "bytes": %.0f, "bf16": %s, "libtorch_ms": %.4f})"
              "\n",
              name.c_str(), ours * 1e3, work.flops, work.bytes, work.bf16 ? "true" : "false", theirs * 1e3);
  std::fflush(stdout);
}

/// Alternates between the two, so that noise of the machine affects both.
void compare(const std::string& name, const Work& work, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  double our_best = 1e9;
  double their_best = 1e9;
  for (int round = 0; round < 100; ++round) {
    our_best = std::min(our_best, seconds_of(ours));
    their_best = std::min(their_best, seconds_of(theirs));
  }
  print(name, work, our_best, their_best);
}

void attention(const std::string& name, int64_t documents, int64_t length, const AttentionShape& shape,
               at::ScalarType type) {
  const int64_t tokens = documents * length;
  const at::Tensor qkv = at::randn({tokens, shape.qkv_width()}).to(type);
  at::Tensor out = at::empty({tokens, shape.out_width()}, qkv.options());
  at::Tensor lse = at::empty({tokens, shape.heads});
  const at::Tensor grad_out = at::randn_like(out);
  at::Tensor grad_qkv = at::empty_like(qkv);
  std::vector<int32_t> boundaries;
  for (int64_t d = 0; d <= documents; ++d) boundaries.push_back(static_cast<int32_t>(d * length));
  const std::vector<AttentionRange> ranges = document_ranges(boundaries);

  const at::Tensor heads = qkv.view({documents, length, -1, shape.head_dim}).transpose(1, 2);
  const int64_t h = shape.heads;
  const at::Tensor q = heads.slice(1, 0, h);
  const auto expand = [&](int64_t begin) {
    return heads.slice(1, begin, begin + shape.kv_heads).repeat_interleave(shape.group(), 1);
  };
  const auto torch_forward = [&] {
    return at::_scaled_dot_product_flash_attention_for_cpu(q, expand(h), expand(h + shape.kv_heads), 0.0,
                                                           true);
  };
  // Causal: half of the pairs of tokens. Two products forward, five backward, which computes the scores again.
  const bool bf16 = type == at::kBFloat16;
  const double product = static_cast<double>(tokens * length * shape.out_width());
  compare(
      name + " forward", {2 * product, bytes_of({qkv, out, lse}), bf16},
      [&] { attention_forward(split_qkv(qkv, shape), shape, ranges, out, lse); }, torch_forward);
  const auto [their_out, their_lse] = torch_forward();
  const at::Tensor grad = grad_out.view({documents, length, h, shape.head_dim}).transpose(1, 2);
  const at::Tensor k = expand(h);
  const at::Tensor v = expand(h + shape.kv_heads);
  const at::Tensor saved_out = their_out;
  const at::Tensor saved_lse = their_lse;
  compare(
      name + " backward", {5 * product, bytes_of({qkv, out, grad_out, grad_qkv, lse}), bf16},
      [&] {
        attention_backward(grad_out, split_qkv(qkv, shape), out, lse, shape, ranges,
                           split_qkv(grad_qkv, shape));
      },
      [&] {
        at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, saved_out, saved_lse, 0.0,
                                                                 true);
      });
}

void element_wise() {
  const at::Tensor x = at::randn({2048, 768});
  const at::Tensor weight = at::randn({768});
  const at::Tensor rstd = at::empty({2048});
  const at::Tensor out = at::empty_like(x);
  const at::Tensor grad_out = at::randn_like(x);
  const at::Tensor grad_weight = at::empty({768});
  // Operations per element: a square, a sum, two products; backward those, and the gradients of input and weight.
  const double elements = 2048.0 * 768.0;
  compare(
      "rms_norm forward 2048x768", {4 * elements, bytes_of({x, weight, out, rstd})},
      [&] { rms_norm_forward(x, weight, 1e-6, out, rstd); },
      [&] { at::_fused_rms_norm(x, {768}, weight, 1e-6); });
  compare(
      "rms_norm backward 2048x768", {11 * elements, bytes_of({x, grad_out, out, rstd, weight, grad_weight})},
      [&] { rms_norm_backward(grad_out, x, weight, rstd, {}, out, grad_weight); },
      [&] { reference::rms_norm_backward(grad_out, x, weight, rstd, {}, out, grad_weight, 0.0); });
  const at::Tensor gate_up = at::randn({2048, 4096});
  const at::Tensor mixed = at::empty({2048, 2048});
  const at::Tensor grad_gate_up = at::empty_like(gate_up);
  // An exponential counts as ten operations.
  const double units = 2048.0 * 2048.0;
  compare(
      "swiglu forward 2048x2048", {13 * units, bytes_of({gate_up, mixed})},
      [&] { swiglu_forward(gate_up, mixed); },
      [&] { at::silu(gate_up.slice(1, 0, 2048)) * gate_up.slice(1, 2048, 4096); });
  compare(
      "swiglu backward 2048x2048", {20 * units, bytes_of({mixed, gate_up, grad_gate_up})},
      [&] { swiglu_backward(mixed, gate_up, grad_gate_up); },
      [&] {
        const at::Tensor gate = gate_up.slice(1, 0, 2048);
        grad_gate_up.slice(1, 0, 2048).copy_(at::silu_backward(mixed * gate_up.slice(1, 2048, 4096), gate));
        grad_gate_up.slice(1, 2048, 4096).copy_(mixed * at::silu(gate));
      });
}

/// The rate of MKL's fp32 matrix products with the setting of mkl_setup.cpp.
void product() {
  const at::Tensor x = at::randn({2048, 512});
  const at::Tensor weight = at::randn({1536, 512});
  at::Tensor out = at::empty({2048, 1536});
  double best = 1e9;
  for (int round = 0; round < 100; ++round) {
    best = std::min(best, seconds_of([&] { at::mm_out(out, x, weight.t()); }));
  }
  print("product 2048x512x1536", {2.0 * 2048 * 512 * 1536, bytes_of({x, weight, out})}, best, 0.0);
}

void optimizer() {
  constexpr int64_t kElements = 16 << 20;
  at::Tensor p = at::randn({kElements});
  at::Tensor g = at::randn({kElements});
  at::Tensor m = at::zeros({kElements});
  at::Tensor v = at::zeros({kElements});
  at::Tensor step = at::zeros({});
  const UpdateScalars scalars = first_update_scalars(at::kCPU);
  // Weight and moments are read and written, the gradient read.
  compare(
      "adamw 16M", {15.0 * kElements, 7.0 * sizeof(float) * kElements},
      [&] { adamw_update(p, g, m, v, 0, kElements, {}, scalars); },
      [&] { at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {step}, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false); });
}

}  // namespace
}  // namespace stepforge

int main(int argc, char** argv) {
  using stepforge::AttentionShape;
  const at::NoGradGuard no_grad;
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  const AttentionShape small = {.heads = 8, .kv_heads = 4, .head_dim = 32, .scale = 1 / std::sqrt(32.0)};
  const AttentionShape large = {.heads = 12, .kv_heads = 4, .head_dim = 64, .scale = 1 / std::sqrt(64.0)};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::string suffix = type == at::kFloat ? " fp32" : " bf16";
    stepforge::attention("attention 8 x 256, d 32" + suffix, 8, 256, small, type);
    stepforge::attention("attention 1 x 1024, d 64" + suffix, 1, 1024, large, type);
  }
  stepforge::product();
  stepforge::element_wise();
  stepforge::optimizer();
}
