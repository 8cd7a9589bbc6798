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
constexpr std::string_view frame = "#9ca3af";

constexpr std::array<std::string_view, 8> palette = {"#2563eb", "#dc2626", "#059669", "#d97706",
                                                     "#7c3aed", "#0891b2", "#db2777", "#4b5563"};
/// From the ninth run on colours repeat with dashes.
constexpr std::array<std::string_view, 3> dash_patterns = {"", "7 3", "2 3"};

struct Look {
  std::string_view colour;
  std::string_view dashes;
};

Look look_of(size_t run) {
  return {palette[run % palette.size()], dash_patterns[run / palette.size() % dash_patterns.size()]};
}

struct Panel {
  std::string_view title;
  Curve RunSeries::* curve;
  /// A second curve of dots, or null.
  Curve RunSeries::* dots;
  /// Draw the curve faintly and a smoothed one over it.
  bool smooth;
  bool from_zero;
  bool cut_peaks;
};

constexpr std::array<Panel, 4> panels = {{
    {"Loss", &RunSeries::loss, &RunSeries::validation_loss, true, false, false},
    {"Gradient norm", &RunSeries::grad_norm, nullptr, true, true, true},
    {"Learning rate", &RunSeries::lr, nullptr, false, true, false},
    {"Tokens per second", &RunSeries::tokens_per_second, nullptr, true, true, false},
}};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(const std::vector<double>& values) {
    for (const double value : values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
};

/// The value below which all but one in 200 lie. `values` is not empty.
double nearly_highest(std::vector<double> values) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) * 199 / 200);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

/// The top of a panel that cuts peaks: a rare peak would press all else to the ground.
double cut_top(const std::vector<RunSeries>& runs, const Panel& panel, double highest) {
  std::vector<double> values;
  for (const RunSeries& run : runs) {
    std::copy_if((run.*panel.curve).y.begin(), (run.*panel.curve).y.end(), std::back_inserter(values),
                 [](double value) { return std::isfinite(value); });
  }
  if (values.empty()) return highest;
  const double usual = nearly_highest(std::move(values));
  return highest > 3 * usual && usual > 0 ? 1.5 * usual : highest;
}

/// From values to pixels.
struct Frame {
  double left = 0, top = 0, width = 0, height = 0;
  Axis x, y;

  double pixel_x(double value) const { return left + (value - x.low) / (x.high - x.low) * width; }
  double pixel_y(double value) const { return top + height - (value - y.low) / (y.high - y.low) * height; }
};

void draw_axes(SvgCanvas& canvas, const Frame& frame_of) {
  const double bottom = frame_of.top + frame_of.height;
  for (size_t i = 0; i < frame_of.y.ticks.size(); ++i) {
    const double y = frame_of.pixel_y(frame_of.y.ticks[i]);
    canvas.line(frame_of.left, y, frame_of.left + frame_of.width, y, {.colour = grid});
    canvas.text(frame_of.left - 8, y + 4, frame_of.y.labels[i],
                {.size = 11, .colour = soft_ink, .anchor = "end"});
  }
  canvas.line(frame_of.left, bottom, frame_of.left + frame_of.width, bottom, {.colour = frame});
  for (size_t i = 0; i < frame_of.x.ticks.size(); ++i) {
    const double x = frame_of.pixel_x(frame_of.x.ticks[i]);
    canvas.line(x, bottom, x, bottom + 4, {.colour = frame});
    canvas.text(x, bottom + 18, frame_of.x.labels[i], {.size = 11, .colour = soft_ink, .anchor = "middle"});
  }
  canvas.text(frame_of.left + frame_of.width / 2, bottom + 36, "step",
              {.size = 11, .colour = soft_ink, .anchor = "middle"});
}

/// Draws the pieces between gaps; a point between two gaps becomes a dot.
void draw_curve(SvgCanvas& canvas, const Frame& frame_of, const Curve& curve,
                const SvgCanvas::LineStyle& style) {
  const Curve drawn = thinned_curve(curve, static_cast<int>(frame_of.width));
  std::vector<std::pair<double, double>> piece;
  const auto end_piece = [&] {
    if (piece.size() == 1) canvas.dot(piece[0].first, piece[0].second, 2, style.colour);
    if (piece.size() > 1) canvas.polyline(piece, style);
    piece.clear();
  };
  for (size_t i = 0; i < drawn.x.size(); ++i) {
    if (std::isfinite(drawn.y[i])) {
      piece.emplace_back(frame_of.pixel_x(drawn.x[i]), frame_of.pixel_y(drawn.y[i]));
    } else {
      end_piece();
    }
  }
  end_piece();
}

void draw_run(SvgCanvas& canvas, const Frame& frame_of, const Panel& panel, const RunSeries& run,
              const Look& look) {
  const Curve& curve = run.*panel.curve;
  if (panel.smooth) {
    draw_curve(canvas, frame_of, curve, {.colour = look.colour, .width = 1, .opacity = 0.25});
    draw_curve(canvas, frame_of, smoothed_curve(curve),
               {.colour = look.colour, .width = 2, .dashes = look.dashes});
  } else {
    draw_curve(canvas, frame_of, curve, {.colour = look.colour, .width = 1.5, .dashes = look.dashes});
  }
  if (panel.dots == nullptr) return;
  const Curve& dots = run.*panel.dots;
  draw_curve(canvas, frame_of, dots, {.colour = look.colour, .width = 1, .opacity = 0.8, .dashes = "3 3"});
  const Curve few = thinned_curve(dots, 15);
  for (size_t i = 0; i < few.x.size(); ++i) {
    if (std::isfinite(few.y[i])) {
      canvas.dot(frame_of.pixel_x(few.x[i]), frame_of.pixel_y(few.y[i]), 3, look.colour);
    }
  }
}

/// What the panel's strokes mean, at the right of its title.
std::string note_of(const Panel& panel, const std::vector<RunSeries>& runs, double highest, double top) {
  if (panel.cut_peaks && highest > top) return format("peaks cut (highest {})", short_number(highest));
  if (panel.dots == nullptr) return "";
  const bool any =
      std::any_of(runs.begin(), runs.end(), [&](const RunSeries& run) { return !(run.*panel.dots).empty(); });
  return any ? "training, smoothed  ·  ○ validation" : "smoothed";
}

Frame frame_for(const std::vector<RunSeries>& runs, const Panel& panel, double left, double top,
                double& highest) {
  Range steps;
  Range values;
  for (const RunSeries& run : runs) {
    steps.include(run.loss.x);
    values.include((run.*panel.curve).y);
    if (panel.dots != nullptr) values.include((run.*panel.dots).y);
  }
  if (steps.low < steps.high / 20 || steps.low == steps.high) steps.low = 0;
  // Steps are whole numbers, so their ticks are too.
  const int step_ticks = static_cast<int>(std::clamp(steps.high - steps.low, 1.0, 7.0));
  highest = values.high;
  if (panel.cut_peaks) values.high = cut_top(runs, panel, highest);
  if (panel.from_zero) values.low = std::min(0.0, values.low);
  return {.left = left + 56,
          .top = top + 30,
          .width = panel_width - 56.0,
          .height = panel_height - 82.0,
          .x = nice_axis(steps.low, steps.high, step_ticks, false),
          .y = nice_axis(values.low, values.high, 5, true)};
}

void draw_panel(SvgCanvas& canvas, const std::vector<RunSeries>& runs, const Panel& panel, double left,
                double top) {
  double highest = 0;
  const Frame frame_of = frame_for(runs, panel, left, top, highest);
  canvas.text(frame_of.left, top + 14, panel.title, {.size = 14, .colour = ink, .bold = true});
  canvas.text(left + panel_width, top + 14, note_of(panel, runs, highest, frame_of.y.high),
              {.size = 11, .colour = soft_ink, .anchor = "end"});
  draw_axes(canvas, frame_of);
  if (!std::isfinite(highest)) {
    canvas.text(frame_of.left + frame_of.width / 2, frame_of.top + frame_of.height / 2, "not recorded",
                {.size = 12, .colour = soft_ink, .anchor = "middle"});
    return;
  }
  canvas.begin_clip(frame_of.left - 4, frame_of.top - 4, frame_of.width + 8, frame_of.height + 8);
  for (size_t i = 0; i < runs.size(); ++i) draw_run(canvas, frame_of, panel, runs[i], look_of(i));
  canvas.end_clip();
}

/// At most `columns` characters, the end replaced by an ellipsis.
std::string shortened(std::string_view text, size_t columns) {
  size_t characters = 0;
  size_t cut = text.size();
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (characters == columns - 1) cut = i;
    ++characters;
  }
  return characters <= columns ? std::string(text) : std::string(text.substr(0, cut)) + "…";
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
  canvas.text(margin + 36, y, "run", {.size = 11, .colour = soft_ink});
  for (const auto& [name, x] : columns)
    canvas.text(x, y, name, {.size = 11, .colour = soft_ink, .anchor = "end"});
  canvas.line(margin, y + 8, picture_width - margin, y + 8, {.colour = grid});
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunSeries& run = runs[i];
    const Look look = look_of(i);
    y += row_height;
    canvas.line(margin, y - 4, margin + 26, y - 4,
                {.colour = look.colour, .width = 3, .dashes = look.dashes});
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
  const int table_height = row_height * static_cast<int>(runs.size() + 1) + 24;
  const int first_panel = title_height + table_height;
  const int height = first_panel + 2 * (panel_height + panel_gap);
  const std::string title = runs.size() == 1 ? "Training of " + shortened(runs[0].name, 80)
                                             : format("{} training runs", runs.size());
  SvgCanvas canvas(picture_width, height, title);
  canvas.text(margin, 42, title, {.size = 22, .colour = ink, .bold = true});
  draw_table(canvas, runs);
  for (size_t i = 0; i < panels.size(); ++i) {
    const size_t column = i % 2;
    const size_t row = i / 2;
    draw_panel(canvas, runs, panels[i], margin + static_cast<double>(column) * (panel_width + margin),
               first_panel + static_cast<double>(row) * (panel_height + panel_gap));
  }
  return std::move(canvas).finish();
}

}  // namespace stepforge
