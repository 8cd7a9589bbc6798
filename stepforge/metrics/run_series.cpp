// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/run_series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/metrics/jsonl.h"
#include "stepforge/metrics/record.h"
#include "stepforge/metrics/smoothed.h"

namespace stepforge {

namespace fs = std::filesystem;

double Curve::last() const {
  const auto found = std::find_if(y.rbegin(), y.rend(), [](double value) { return std::isfinite(value); });
  return found == y.rend() ? std::numeric_limits<double>::quiet_NaN() : *found;
}

RunSeries read_run_series(const fs::path& run) {
  const fs::path file = fs::is_directory(run) ? run / "metrics.jsonl" : run;
  if (!fs::exists(file)) {
    throw UsageError(format("{} does not exist; give a run folder, or a metrics.jsonl", file.string()));
  }
  RunSeries series;
  // "runs/small/" and "." have no file name of their own.
  const fs::path folder = fs::weakly_canonical(file).parent_path();
  const bool has_folder = file.filename() == "metrics.jsonl" && folder.has_filename();
  series.name = has_folder ? folder.filename().string() : file.string();
  for (const MetricsRecord& record : read_jsonl(file)) {
    const auto add = [&](Curve& curve, std::string_view name) {
      const auto value = record.find(name);
      if (value) curve.add(static_cast<double>(record.step), std::isfinite(*value) ? *value : NAN);
    };
    if (record.kind == "train") {
      add(series.loss, metric::loss);
      add(series.grad_norm, metric::grad_norm);
      add(series.lr, metric::lr);
      // Records of versions before it have that of a rank only.
      add(series.tokens_per_second, record.find(metric::job_tps) ? metric::job_tps : metric::tps);
      series.tokens_seen = record.find(metric::tokens_seen).value_or(series.tokens_seen);
    } else if (record.kind == "validation") {
      add(series.validation_loss, metric::validation_loss);
    }
  }
  if (series.loss.empty()) throw UsageError(format("{} has no training step yet", file.string()));
  return series;
}

Curve smoothed_curve(const Curve& curve) {
  const double decay = 1 - 1 / std::max(2.0, static_cast<double>(curve.x.size()) / 200);
  Curve result = curve;
  // A running mean from left to right lags; another one from right to left takes the lag back.
  for (int direction = 0; direction < 2; ++direction) {
    Smoothed mean;
    for (double& y : result.y) {
      mean.add(y, decay);
      if (std::isfinite(y)) y = mean.value();
    }
    std::reverse(result.y.begin(), result.y.end());
  }
  return result;
}

Curve thinned_curve(const Curve& curve, int columns) {
  const auto& [x, y] = curve;
  if (x.size() <= static_cast<size_t>(columns) * 4) return curve;
  const double width = x.back() - x[0];
  const auto column = [&](size_t i) { return width > 0 ? std::floor((x[i] - x[0]) / width * columns) : 0; };
  Curve result;
  // The first, lowest, highest and last of points that are all finite or all gaps.
  std::array<size_t, 4> picks{};
  for (size_t i = 1; i <= x.size(); ++i) {
    if (i == x.size() || column(i) != column(picks[0]) || std::isnan(y[i]) != std::isnan(y[picks[0]])) {
      for (const size_t pick : std::set(picks.begin(), picks.end())) result.add(x[pick], y[pick]);
      picks.fill(i);
    } else {
      if (y[i] < y[picks[1]]) picks[1] = i;
      if (y[i] > y[picks[2]]) picks[2] = i;
      picks[3] = i;
    }
  }
  return result;
}

}  // namespace stepforge
