// SPDX-License-Identifier: Apache-2.0
// The stage "kernels".
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <ATen/TensorOperators.h>

#include "stepforge/app/torch/gpu_check/kernel_cases.h"
#include "stepforge/app/torch/gpu_check/stage.h"
#include "stepforge/kernels/kernel_table.h"

namespace stepforge::gpu_check {

namespace {

constexpr double kErrorAllowed32 = 3e-5;      // 500 unit roundoffs: sums have a thousand terms
constexpr double kErrorAllowed16 = 0x1.0p-6;  // 8 unit roundoffs

struct Shape {
  int64_t tokens;
  int64_t width;
};
constexpr Shape kShapes[] = {{12, 33}, {13, 6}, {21, 64}, {257, 130}, {1025, 1027}};
constexpr Shape kSmallShapes[] = {{12, 33}, {13, 6}, {21, 64}};

/// The rows that run on the device: its own, or on the CPU those of this library.
std::set<std::string> rows_of(const KernelTable& table, bool cpu) {
  std::set<std::string> rows;
#define STEPFORGE_ROW(name, types) \
  if (cpu ? table.name.cpu != nullptr : table.name.device != nullptr) rows.insert(#name);
  STEPFORGE_KERNELS(STEPFORGE_ROW)
#undef STEPFORGE_ROW
  return rows;
}

/// max |actual - expected| / (|expected| + root mean square of expected); infinity if the shapes differ, or if a number of either is
/// NaN or infinite.
double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor got = actual.cpu().to(at::kDouble);
  const at::Tensor wanted = expected.cpu().to(at::kDouble);
  if (got.sizes() != wanted.sizes()) return std::numeric_limits<double>::infinity();
  if (got.numel() == 0) return 0;
  const double typical = std::sqrt(wanted.square().mean().item<double>()) + 1e-30;
  const double error = ((got - wanted).abs() / (wanted.abs() + typical)).max().item<double>();
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

Tensors run_with(const KernelTable& table, const KernelCase& of, const Inputs& in) {
  const ChargeMemory rank(make_rank_memory(table));
  return of.run(in);
}

/// The largest error of one case, in one type and shape.
double check_case(const KernelTable& table, const KernelCase& of, Inputs in) {
  const Tensors actual = run_with(table, of, in);
  KernelTable references;
  references.references_only = true;
  in.device = at::kCPU;
  in.wide = of.wide;
  const Tensors expected = run_with(references, of, in);
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, error_of(actual.at(i), expected[i]));
  return largest;
}

/// A case in all shapes of both types.
void check_shapes(const Check& check, Findings& found, const KernelTable& table, const KernelCase& of,
                  Json& rows) {
  const std::string name = join(of.rows, ", ");
  Json row = {{"kernels", of.rows}, {"reference", of.wide ? "fp64" : "of the same type"}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const bool narrow = type == at::kBFloat16;
    double largest = 0;
    for (const Shape& shape : check.small ? std::span<const Shape>(kSmallShapes) : kShapes) {
      const std::string what =
          format("{} on {} x {} {}", name, shape.tokens, shape.width, narrow ? "bf16" : "fp32");
      try {
        const Inputs in{
            .device = check.compute.device, .type = type, .tokens = shape.tokens, .width = shape.width};
        const double error = check_case(table, of, in);
        largest = std::max(largest, error);
        if (error > (narrow ? kErrorAllowed16 : kErrorAllowed32))
          found.fail("{}: differs from the reference by {:.2g}", what, error);
      } catch (const std::exception& failure) {
        found.fail("{}: {}", what, reason_of(failure));
      }
    }
    row[narrow ? "bf16" : "fp32"] = std::isfinite(largest) ? Json(largest) : Json("infinite");
  }
  rows.push_back(std::move(row));
}

}  // namespace

void check_kernels(Check& check, Findings& found) {
  if (!check.has_kernels()) return found.skip("this device has no kernels of its own");
  KernelTable table;
  if (check.compute.add_kernels != nullptr) check.compute.add_kernels(table);
  std::set<std::string> missing = rows_of(table, check.compute.device.is_cpu());
  const size_t count = missing.size();
  Json rows = Json::array();
  for (const KernelCase& of : kernel_cases()) {
    if (std::ranges::none_of(of.rows, [&](const auto& row) { return missing.contains(row); })) continue;
    check_shapes(check, found, table, of, rows);
  }
  for (const KernelCase& of : kernel_cases())
    for (const std::string& row : of.rows) missing.erase(row);
  for (const std::string& row : missing) found.fail("{}: no case calls this kernel", row);
  found.figure("rows", count);
  found.figure("cases", rows);
  found.note("{} rows of the table of kernels; allowed errors: fp32 {:.2g}, bf16 {:.2g}", count,
             kErrorAllowed32, kErrorAllowed16);
}

}  // namespace stepforge::gpu_check
