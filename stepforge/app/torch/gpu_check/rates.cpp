// SPDX-License-Identifier: Apache-2.0
// The stage "rates": what the device computes, moves and launches per second.
#include <algorithm>
#include <chrono>
#include <functional>
#include <span>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "stepforge/app/torch/gpu_check/kernel_cases.h"
#include "stepforge/app/torch/gpu_check/stage.h"
#include "stepforge/base/staged.h"
#include "stepforge/plan/machine_file.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge::gpu_check {

namespace {

/// A product [m, k] x [k, n].
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  at::ScalarType type = at::kBFloat16;

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

/// Square ones; layers of 8B, 1B and 0.5B; their heads; few rows, as in generation; fp32.
constexpr Product kProducts[] = {
    {8192, 8192, 8192},
    {4096, 4096, 4096},
    {4096, 28672, 4096},
    {4096, 4096, 14336},
    {4096, 6144, 4096},
    {4096, 16384, 2048},
    {4096, 2048, 8192},
    {4096, 2048, 2048},
    {4096, 9728, 896},
    {4096, 896, 4864},
    {4096, 896, 896},
    {4096, 128256, 2048},
    {4096, 2048, 128256},
    {2048, 2048, 4096},
    {512, 4096, 4096},
    {1, 4096, 4096},
    {4096, 4096, 4096, at::kFloat},
    {8192, 8192, 8192, at::kFloat},
};
constexpr Product kSmallProducts[] = {{64, 96, 32}, {33, 17, 65}, {1, 64, 64}, {64, 64, 64, at::kFloat}};

/// Runs work on the device and measures it by the clock of the host, which waits at both ends.
class Meter {
 public:
  Meter(c10::Device device, double seconds) : device_(device), seconds_(seconds) {}

  /// Seconds of one call: of as many calls as fit into the time of a measurement, after some to warm up.
  double seconds_of(const std::function<void()>& call) const {
    constexpr int kWarmUp = 3;
    for (int i = 0; i < kWarmUp; ++i) call();
    const double once = time(call, kWarmUp);
    const double fitting = seconds_ / std::max(once, 1e-7);
    return time(call, static_cast<int>(std::clamp(fitting, 3.0, 2000.0)));
  }

 private:
  double time(const std::function<void()>& call, int times) const {
    wait_for_device(device_);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) call();
    wait_for_device(device_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
  }
  c10::Device device_;
  double seconds_;
};

/// A matrix of random values, since a GPU that multiplies constants needs less power and may clock higher. They repeat after a prime
/// number of elements, so that rows differ.
at::Tensor matrix_of(int64_t rows, int64_t columns, uint64_t seed, at::ScalarType type, at::Device device) {
  constexpr int64_t kDifferent = 1'000'003;
  const int64_t size = rows * columns;
  const int64_t different = std::min(size, kDifferent);
  const at::Tensor values = random_values({different}, seed, 1, type);
  const at::Tensor repeated = values.repeat({(size + different - 1) / different});
  return repeated.slice(0, 0, size).view({rows, columns}).to(device);
}

/// Measures all products; the rate over all large ones of bf16.
double measure_products(const Check& check, const Meter& meter, Json& rows, Findings& found) {
  constexpr int64_t kManyRows = 2048;
  double flops = 0;
  double seconds = 0;
  for (const Product& product : check.small ? std::span<const Product>(kSmallProducts) : kProducts) {
    const at::Tensor a = matrix_of(product.m, product.k, 1, product.type, check.compute.device);
    const at::Tensor b = matrix_of(product.k, product.n, 2, product.type, check.compute.device);
    at::Tensor out = at::empty({product.m, product.n}, a.options());
    const double time = meter.seconds_of([&] { at::mm_out(out, a, b); });
    const double rate = product.flops() / time;
    const bool narrow = product.type == at::kBFloat16;
    rows.push_back({{"m", product.m},
                    {"n", product.n},
                    {"k", product.k},
                    {"dtype", narrow ? "bf16" : "fp32"},
                    {"seconds", time},
                    {"flops_per_second", rate}});
    found.note("product {} x {} x {} in {}: {:.4g} TFLOP/s", product.m, product.n, product.k,
               narrow ? "bf16" : "fp32", rate * 1e-12);
    if (!narrow || (!check.small && product.m < kManyRows)) continue;
    flops += product.flops();
    seconds += time;
  }
  return flops / seconds;
}

/// Bytes per second of copies: inside the device (read and written), and to it from pinned memory and back.
double measure_copies(const Check& check, const Meter& meter, Json& rows, Findings& found) {
  const int64_t bytes = check.small ? 1 << 16 : int64_t{1} << 29;
  const c10::Device device = check.compute.device;
  const auto host = at::device(at::kCPU).dtype(at::kByte);
  const at::Tensor first = at::ones({bytes}, at::device(device).dtype(at::kByte));
  const at::Tensor second = at::empty({bytes}, at::device(device).dtype(at::kByte));
  const at::Tensor pinned = at::empty({bytes}, device.is_cpu() ? host : host.pinned_memory(true));
  const auto rate_of = [&](const char* name, double moved, const std::function<void()>& copy) {
    const double rate = moved / meter.seconds_of(copy);
    rows[name] = rate;
    found.note("copy {}: {:.4g} GB/s", name, rate * 1e-9);
    return rate;
  };
  const auto size = static_cast<double>(bytes);
  const double inside = rate_of("inside", 2 * size, [&] { second.copy_(first, /*non_blocking=*/true); });
  rate_of("from_host", size, [&] { second.copy_(pinned, /*non_blocking=*/true); });
  rate_of("to_host", size, [&] { pinned.copy_(second, /*non_blocking=*/true); });
  return inside;
}

}  // namespace

void check_rates(Check& check, Findings& found) {
  const Meter meter(check.compute.device, check.small ? 0.002 : 0.4);
  MachineModel machine;
  machine.name = "measured " + check.compute.device.str();
  Json products = Json::array();
  Json copies = Json::object();
  machine.flops_per_second = measure_products(check, meter, products, found);
  machine.memory_bytes_per_second = measure_copies(check, meter, copies, found);
  const at::Tensor one = at::ones({1}, at::device(check.compute.device).dtype(at::kFloat));
  machine.seconds_per_operation = meter.seconds_of([&] { one.mul_(1.0); });
  found.note("launch of one small operation: {:.3g} us", machine.seconds_per_operation * 1e6);

  MachineSpec measured;
  measured.device.peak_tflops.bf16 = machine.flops_per_second * 1e-12;
  measured.device.memory_gb_per_second = machine.memory_bytes_per_second * 1e-9;
  const std::filesystem::path plan_file = check.output / "machine.toml";
  write_file_atomic(plan_file,
                    machine_toml(measured, "Rates of large products and of memory, " + machine.name));
  const Json file = {{"name", machine.name},
                     {"flops_per_second", machine.flops_per_second},
                     {"memory_bytes_per_second", machine.memory_bytes_per_second},
                     {"seconds_per_operation", machine.seconds_per_operation},
                     {"copies_bytes_per_second", copies},
                     {"products", products}};
  write_file_atomic(check.output / "machine.json", file.dump(2) + "\n");
  found.figure("machine", file);
  found.note(
      "over all large products in bf16: {:.4g} TFLOP/s; `stepforge plan --machine {}` predicts with these rates",
      machine.flops_per_second * 1e-12, plan_file.string());
  check.machine = std::move(machine);
}

}  // namespace stepforge::gpu_check
