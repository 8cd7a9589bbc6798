// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/run_series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/metrics/jsonl.h"
#include "stepforge/metrics/record.h"
#include "stepforge/metrics/run_folder.h"

namespace stepforge {

namespace fs = std::filesystem;

double Curve::last() const {
  const auto found = std::find_if(y.rbegin(), y.rend(), [](double value) { return std::isfinite(value); });
  return found == y.rend() ? std::numeric_limits<double>::quiet_NaN() : *found;
}

namespace {

/// The starts of the run that wrote this metrics file; none if its run.json is missing or damaged.
std::vector<RunStart> starts_beside(const fs::path& metrics) {
  try {
    return read_run_history(metrics.parent_path().empty() ? fs::path(".") : metrics.parent_path());
  } catch (const Error&) {
    return {};
  }
}

/// A step from which a start continued.
struct Resume {
  int64_t step = 0;
  bool died = false;
};

std::vector<Resume> resumes_of(const std::vector<RunStart>& starts) {
  std::vector<Resume> resumes;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (starts[i].begin_step == 0) continue;
    const std::string end = i > 0 ? starts[i - 1].exit_reason : "";
    resumes.push_back({starts[i].begin_step, end == "died" || end.starts_with("failed")});
  }
  std::sort(resumes.begin(), resumes.end(),
            [](const Resume& left, const Resume& right) { return left.step < right.step; });
  return resumes;
}

/// Gives records their place on the x axis, one after the other.
class XAxis {
 public:
  XAxis(PlotX kind, const std::vector<RunStart>& starts) : kind_(kind), resumes_(resumes_of(starts)) {}

  double place(const MetricsRecord& record) {
    bool resumed = false;
    for (; next_ < resumes_.size() && record.step > resumes_[next_].step; ++next_) {
      marks_.push_back({x_of_step(), resumes_[next_].died});
      resumed = true;
    }
    if (time_ > 0 && !resumed) hours_ += std::max(0.0, record.wall_time - time_) / 3600;
    time_ = record.wall_time;
    step_ = static_cast<double>(record.step);
    tokens_ = record.find(metric::tokens_seen).value_or(tokens_);
    return x_of_step();
  }
  std::vector<ResumeMark> marks() && { return std::move(marks_); }

 private:
  double x_of_step() const {
    return kind_ == PlotX::steps ? step_ : kind_ == PlotX::tokens ? tokens_ : hours_;
  }

  PlotX kind_;
  std::vector<Resume> resumes_;
  size_t next_ = 0;  // the first start whose records have not begun
  std::vector<ResumeMark> marks_;
  double time_ = 0;
  double step_ = 0;
  double tokens_ = 0;
  double hours_ = 0;
};

}  // namespace

RunSeries read_run_series(const fs::path& run, PlotX x) {
  const fs::path file = fs::is_directory(run) ? run / "metrics.jsonl" : run;
  if (!fs::exists(file)) {
    throw UsageError(format("{} does not exist; give a run folder, or a metrics.jsonl", file.string()));
  }
  RunSeries series;
  // "runs/small/" and "." have no file name of their own.
  const fs::path folder = fs::weakly_canonical(file).parent_path();
  const bool has_folder = file.filename() == "metrics.jsonl" && folder.has_filename();
  series.name = has_folder ? folder.filename().string() : file.string();
  const std::vector<RunStart> starts = starts_beside(file);
  XAxis axis(x, starts);
  for (const MetricsRecord& record : read_jsonl(file)) {
    const double place = axis.place(record);
    const auto add = [&](Curve& curve, std::string_view name) {
      const auto value = record.find(name);
      if (value) curve.add(place, std::isfinite(*value) ? *value : NAN);
    };
    series.steps = record.step;
    if (record.kind == "train") {
      add(series.loss, metric::loss);
      add(series.grad_norm, metric::grad_norm);
      add(series.lr, metric::lr);
      // Records of older versions have only the rate of one rank.
      add(series.tokens_per_second, record.find(metric::job_tps) ? metric::job_tps : metric::tps);
      series.tokens_seen = record.find(metric::tokens_seen).value_or(series.tokens_seen);
    } else if (record.kind == "validation") {
      add(series.validation_loss, metric::validation_loss);
    }
  }
  if (series.loss.empty()) throw UsageError(format("{} has no training step yet", file.string()));
  series.resumes = std::move(axis).marks();
  return series;
}

namespace {

/// Weighted sums over the points up to one: the weight falls by `decay` with each step of distance, and is multiplied by
/// the distance to the powers 0, 1 and 2.
struct WeightedSums {
  double weight = 0, distance = 0, square = 0;
  double value = 0, value_distance = 0;

  void step(double decay) {
    square = decay * (square + 2 * distance + weight);
    distance = decay * (distance + weight);
    weight *= decay;
    value_distance = decay * (value_distance + value);
    value *= decay;
  }
  void add(double y) {
    weight += 1;
    value += y;
  }
};

}  // namespace

Curve smoothed_curve(const Curve& curve) {
  const double decay = 1 - 1 / std::max(2.0, static_cast<double>(curve.x.size()) / 200);
  std::vector<size_t> finite;
  for (size_t i = 0; i < curve.y.size(); ++i) {
    if (std::isfinite(curve.y[i])) finite.push_back(i);
  }
  std::vector<WeightedSums> later(finite.size());  // of the points after each one
  WeightedSums sums;
  for (size_t i = finite.size(); i-- > 0;) {
    sums.step(decay);
    later[i] = sums;
    sums.add(curve.y[finite[i]]);
  }
  Curve result = curve;
  sums = {};
  for (size_t i = 0; i < finite.size(); ++i) {
    sums.step(decay);
    sums.add(curve.y[finite[i]]);
    // The least squares line of all points around this one, at its own place.
    const double weight = sums.weight + later[i].weight;
    const double distance = later[i].distance - sums.distance;
    const double square = sums.square + later[i].square;
    const double value = sums.value + later[i].value;
    const double value_distance = later[i].value_distance - sums.value_distance;
    const double determinant = weight * square - distance * distance;
    result.y[finite[i]] = determinant > 1e-9 * weight
                              ? (square * value - distance * value_distance) / determinant
                              : value / weight;
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
