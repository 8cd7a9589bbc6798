// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/metrics/axis.h"
#include "stepforge/metrics/svg.h"

namespace stepforge {

namespace {

constexpr int picture_width = 1200;
constexpr int margin = 32;
constexpr int title_height = 64;
constexpr int row_height = 24;
constexpr int panel_width = (picture_width - 3 * margin) / 2;
constexpr int panel_height = 320;
constexpr int panel_gap = 16;

constexpr std::string_view ink = "#111827";
constexpr std::string_view soft_ink = "#6b7280";
constexpr std::string_view grid = "#e5e7eb";
constexpr std::string_view frame_colour = "#9ca3af";
constexpr SvgText small{.size = 11, .colour = soft_ink};
constexpr SvgText small_centred{.size = 11, .colour = soft_ink, .anchor = "middle"};
constexpr SvgText small_right{.size = 11, .colour = soft_ink, .anchor = "end"};

/// Colour and dashes of a run's lines: from the ninth run on colours repeat with other dashes.
SvgStroke stroke_of(size_t run, double width, double opacity = 1) {
  constexpr std::array<std::string_view, 8> palette = {"#2563eb", "#dc2626", "#059669", "#d97706",
                                                       "#7c3aed", "#0891b2", "#db2777", "#4b5563"};
  constexpr std::array<std::string_view, 3> dashes = {"", "7 3", "2 3"};
  return {palette[run % palette.size()], width, opacity, dashes[run / palette.size() % dashes.size()]};
}

struct Panel {
  std::string_view title;
  Curve RunSeries::* curve;
  Curve RunSeries::* dots;  ///< a second curve, drawn as dots, or null
  bool smooth;              ///< draw the curve faintly and a smoothed one over it
  bool from_zero;
  bool cut_peaks;
};

constexpr std::array<Panel, 4> panels = {{
    {"Loss", &RunSeries::loss, &RunSeries::validation_loss, true, false, false},
    {"Gradient norm", &RunSeries::grad_norm, nullptr, true, true, true},
    {"Learning rate", &RunSeries::lr, nullptr, false, true, false},
    {"Tokens per second", &RunSeries::tokens_per_second, nullptr, true, true, false},
}};

void append_finite(std::vector<double>& values, const std::vector<double>& more) {
  std::copy_if(more.begin(), more.end(), std::back_inserter(values),
               [](double value) { return std::isfinite(value); });
}

/// The smallest and largest of `values`; an empty range if there are none.
std::pair<double, double> range_of(const std::vector<double>& values) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (values.empty()) return {infinity, -infinity};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {*low, *high};
}

/// The top of a panel that cuts rare peaks, which would flatten the rest of the curve: 1.5 times the value
/// that all but one in 200 stay below, if the highest is more than 3 times that value.
double cut_top(std::vector<double> values, double highest) {
  if (values.empty()) return highest;
  const auto place = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) * 199 / 200);
  std::nth_element(values.begin(), place, values.end());
  return highest > 3 * *place && *place > 0 ? 1.5 * *place : highest;
}

/// One panel's place in the picture and its axes.
class PanelDrawing {
 public:
  PanelDrawing(SvgCanvas& canvas, const std::vector<RunSeries>& runs, const Panel& panel, double left,
               double top)
      : canvas_(canvas), runs_(runs), panel_(panel), left_(left + 56), top_(top + 30) {
    std::vector<double> steps;
    std::vector<double> values;
    for (const RunSeries& run : runs) {
      append_finite(steps, run.loss.x);
      append_finite(values, (run.*panel.curve).y);
    }
    const double cut = panel.cut_peaks ? cut_top(values, range_of(values).second) : INFINITY;
    for (const RunSeries& run : runs) {
      if (panel.dots != nullptr) append_finite(values, (run.*panel.dots).y);
    }
    auto [first, last] = range_of(steps);
    if (first < last / 20 || first == last) first = 0;
    auto [low, high] = range_of(values);
    highest_ = high;
    if (panel.from_zero) low = std::min(0.0, low);
    // Steps are whole numbers, so their ticks are too.
    x_ = nice_axis(first, last, static_cast<int>(std::clamp(last - first, 1.0, 7.0)), false);
    y_ = nice_axis(low, std::min(high, cut), 5, true);
  }

  void draw() {
    canvas_.text(left_, top_ - 16, panel_.title, {.size = 14, .colour = ink, .bold = true});
    canvas_.text(left_ + width_, top_ - 16, note(), small_right);
    draw_axes();
    if (!std::isfinite(highest_)) {
      canvas_.text(left_ + width_ / 2, top_ + height_ / 2, "not recorded",
                   {.size = 12, .colour = soft_ink, .anchor = "middle"});
      return;
    }
    canvas_.begin_clip(left_ - 4, top_ - 4, width_ + 8, height_ + 8);
    for (size_t run = 0; run < runs_.size(); ++run) draw_run(run);
    canvas_.end_clip();
  }

 private:
  double x(double step) const { return left_ + (step - x_.low) / (x_.high - x_.low) * width_; }
  double y(double value) const { return top_ + height_ - (value - y_.low) / (y_.high - y_.low) * height_; }

  /// What the panel's lines mean, at the right of its title.
  std::string note() const {
    if (panel_.cut_peaks && highest_ > y_.high)
      return format("peaks cut (highest {})", short_number(highest_));
    if (panel_.dots == nullptr) return "";
    const bool any = std::any_of(runs_.begin(), runs_.end(),
                                 [&](const RunSeries& run) { return !(run.*panel_.dots).empty(); });
    return any ? "training, smoothed  ·  ○ validation" : "smoothed";
  }

  void draw_axes() {
    const double bottom = top_ + height_;
    for (size_t i = 0; i < y_.ticks.size(); ++i) {
      canvas_.line(left_, y(y_.ticks[i]), left_ + width_, y(y_.ticks[i]), {.colour = grid});
      canvas_.text(left_ - 8, y(y_.ticks[i]) + 4, y_.labels[i], small_right);
    }
    canvas_.line(left_, bottom, left_ + width_, bottom, {.colour = frame_colour});
    for (size_t i = 0; i < x_.ticks.size(); ++i) {
      canvas_.line(x(x_.ticks[i]), bottom, x(x_.ticks[i]), bottom + 4, {.colour = frame_colour});
      canvas_.text(x(x_.ticks[i]), bottom + 18, x_.labels[i], small_centred);
    }
    canvas_.text(left_ + width_ / 2, bottom + 36, "step", small_centred);
  }

  void draw_run(size_t run) {
    const Curve& curve = runs_[run].*panel_.curve;
    if (panel_.smooth) {
      SvgStroke faint = stroke_of(run, 1, 0.25);
      faint.dashes = "";
      draw_curve(curve, faint);
      draw_curve(smoothed_curve(curve), stroke_of(run, 2));
    } else {
      draw_curve(curve, stroke_of(run, 1.5));
    }
    if (panel_.dots == nullptr) return;
    const Curve& dots = runs_[run].*panel_.dots;
    SvgStroke dashed = stroke_of(run, 1, 0.8);
    dashed.dashes = "3 3";
    draw_curve(dots, dashed);
    const Curve few = thinned_curve(dots, 15);
    for (size_t i = 0; i < few.x.size(); ++i) {
      if (std::isfinite(few.y[i])) canvas_.dot(x(few.x[i]), y(few.y[i]), 3, dashed.colour);
    }
  }

  /// Draws the pieces between gaps; a point between two gaps becomes a dot.
  void draw_curve(const Curve& curve, const SvgStroke& stroke) {
    const Curve drawn = thinned_curve(curve, static_cast<int>(width_));
    std::vector<std::pair<double, double>> piece;
    for (size_t i = 0; i <= drawn.x.size(); ++i) {
      if (i < drawn.x.size() && std::isfinite(drawn.y[i])) {
        piece.emplace_back(x(drawn.x[i]), y(drawn.y[i]));
        continue;
      }
      if (piece.size() == 1) canvas_.dot(piece[0].first, piece[0].second, 2, stroke.colour);
      if (piece.size() > 1) canvas_.polyline(piece, stroke);
      piece.clear();
    }
  }

  SvgCanvas& canvas_;
  const std::vector<RunSeries>& runs_;
  const Panel& panel_;
  double left_;
  double top_;
  double width_ = panel_width - 56;
  double height_ = panel_height - 82;
  double highest_ = 0;
  Axis x_;
  Axis y_;
};

/// At most `columns` characters, the end replaced by an ellipsis.
std::string shortened(std::string_view text, size_t columns) {
  const auto begins_character = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  if (static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character)) <= columns) {
    return std::string(text);
  }
  size_t end = 0;
  for (size_t characters = 0; characters < columns; ++end) characters += begins_character(text[end]) ? 1 : 0;
  return std::string(text.substr(0, end - 1)) + "…";
}

void draw_table(SvgCanvas& canvas, const std::vector<RunSeries>& runs) {
  constexpr std::array<std::pair<std::string_view, int>, 7> columns = {{{"step", 560},
                                                                        {"tokens", 660},
                                                                        {"loss", 760},
                                                                        {"validation", 870},
                                                                        {"grad norm", 970},
                                                                        {"learning rate", 1075},
                                                                        {"tokens/s", 1168}}};
  double y = title_height + 14;
  canvas.text(margin + 36, y, "run", small);
  for (const auto& [name, x] : columns) canvas.text(x, y, name, small_right);
  canvas.line(margin, y + 8, picture_width - margin, y + 8, {.colour = grid});
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunSeries& run = runs[i];
    y += row_height;
    canvas.line(margin, y - 4, margin + 26, y - 4, stroke_of(i, 3));
    canvas.text(margin + 36, y, shortened(run.name, 60), {.size = 13, .colour = ink});
    const std::array<std::string, 7> cells = {
        run.loss.empty() ? "–" : with_thousands(std::llround(run.loss.x.back())),
        short_number(run.tokens_seen),
        short_number(run.loss.last()),
        short_number(run.validation_loss.last()),
        short_number(run.grad_norm.last()),
        short_number(run.lr.last()),
        short_number(run.tokens_per_second.last())};
    for (size_t c = 0; c < cells.size(); ++c) {
      canvas.text(columns[c].second, y, cells[c], {.size = 13, .colour = ink, .anchor = "end"});
    }
  }
}

}  // namespace

std::string plot_svg(const std::vector<RunSeries>& runs) {
  const int first_panel = title_height + row_height * static_cast<int>(runs.size() + 1) + 24;
  const std::string title = runs.size() == 1 ? "Training of " + shortened(runs[0].name, 80)
                                             : format("{} training runs", runs.size());
  SvgCanvas canvas(picture_width, first_panel + 2 * (panel_height + panel_gap), title);
  canvas.text(margin, 42, title, {.size = 22, .colour = ink, .bold = true});
  draw_table(canvas, runs);
  for (int i = 0; i < 4; ++i) {
    const int column = i % 2;
    const int row = i / 2;
    PanelDrawing(canvas, runs, panels[static_cast<size_t>(i)], margin + column * (panel_width + margin),
                 first_panel + row * (panel_height + panel_gap))
        .draw();
  }
  return canvas.finish();
}

}  // namespace stepforge
