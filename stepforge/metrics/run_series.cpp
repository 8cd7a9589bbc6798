// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/run_series.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/metrics/jsonl.h"
#include "stepforge/metrics/record.h"

namespace stepforge {

namespace fs = std::filesystem;

double Curve::last() const {
  const auto found = std::find_if(y.rbegin(), y.rend(), [](double value) { return std::isfinite(value); });
  return found == y.rend() ? std::numeric_limits<double>::quiet_NaN() : *found;
}

namespace {

void add_value(Curve& curve, const MetricsRecord& record, std::string_view name) {
  const auto value = record.find(name);
  if (!value) return;
  curve.add(static_cast<double>(record.step),
            std::isfinite(*value) ? *value : std::numeric_limits<double>::quiet_NaN());
}

std::string name_of(const fs::path& file) {
  // "runs/small/" and "." have no file name of their own.
  const fs::path folder = fs::weakly_canonical(file).parent_path();
  return file.filename() == "metrics.jsonl" && folder.has_filename() ? folder.filename().string()
                                                                     : file.string();
}

}  // namespace

RunSeries read_run_series(const fs::path& run) {
  const fs::path file = fs::is_directory(run) ? run / "metrics.jsonl" : run;
  if (!fs::exists(file)) {
    throw UsageError(format("{} does not exist; give a run folder, or a metrics.jsonl", file.string()));
  }
  RunSeries series;
  series.name = name_of(file);
  for (const MetricsRecord& record : read_jsonl(file)) {
    if (record.kind == "train") {
      add_value(series.loss, record, metric::loss);
      add_value(series.grad_norm, record, metric::grad_norm);
      add_value(series.lr, record, metric::lr);
      add_value(series.tokens_per_second, record, metric::tps);
      series.tokens_seen = record.find(metric::tokens_seen).value_or(series.tokens_seen);
    } else if (record.kind == "validation") {
      add_value(series.validation_loss, record, metric::validation_loss);
    }
  }
  if (series.loss.empty()) throw UsageError(format("{} has no training step yet", file.string()));
  return series;
}

Curve smoothed_curve(const Curve& curve) {
  const size_t count = curve.x.size();
  const double decay = 1 - 1 / std::max(2.0, static_cast<double>(count) / 200);
  // Sum and weight of what lies to the left of each point and on it, then the same from the right.
  std::vector<double> sums(count);
  std::vector<double> weights(count);
  double sum = 0;
  double weight = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool finite = std::isfinite(curve.y[i]);
    sums[i] = sum = decay * sum + (finite ? curve.y[i] : 0);
    weights[i] = weight = decay * weight + (finite ? 1 : 0);
  }
  sum = weight = 0;
  for (size_t i = count; i-- > 0;) {
    sums[i] += sum;
    weights[i] += weight;
    const bool finite = std::isfinite(curve.y[i]);
    sum = decay * (sum + (finite ? curve.y[i] : 0));
    weight = decay * (weight + (finite ? 1 : 0));
  }
  Curve result;
  for (size_t i = 0; i < count; ++i) {
    result.add(curve.x[i], std::isfinite(curve.y[i]) ? sums[i] / weights[i] : curve.y[i]);
  }
  return result;
}

Curve thinned_curve(const Curve& curve, int columns) {
  const size_t count = curve.x.size();
  if (count <= static_cast<size_t>(columns) * 4) return curve;
  Curve result;
  const auto column_of = [&](size_t i) {
    const double share = (curve.x[i] - curve.x.front()) / (curve.x.back() - curve.x.front());
    return std::isfinite(share) ? static_cast<int64_t>(share * columns) : 0;
  };
  for (size_t begin = 0; begin < count;) {
    // A run of points in one column, all finite or all gaps.
    const bool finite = std::isfinite(curve.y[begin]);
    size_t end = begin + 1;
    while (end < count && column_of(end) == column_of(begin) && std::isfinite(curve.y[end]) == finite) ++end;
    const auto first = curve.y.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = curve.y.begin() + static_cast<std::ptrdiff_t>(end);
    const auto [lowest, highest] = std::minmax_element(first, last);
    std::array<size_t, 4> picks = {begin, begin, begin, end - 1};
    if (finite) {
      picks[1] = static_cast<size_t>(lowest - curve.y.begin());
      picks[2] = static_cast<size_t>(highest - curve.y.begin());
    }
    std::sort(picks.begin(), picks.end());
    for (size_t i = 0; i < picks.size(); ++i) {
      if (i == 0 || picks[i] != picks[i - 1]) result.add(curve.x[picks[i]], curve.y[picks[i]]);
    }
    begin = end;
  }
  return result;
}

}  // namespace stepforge
