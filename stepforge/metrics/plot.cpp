// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

// The page in pixels: a title, a table of the runs, and two by two panels.
constexpr int kPageWidth = 1200;
constexpr int kMargin = 32;
constexpr int kTableTop = 78;
constexpr int kRowHeight = 24;
constexpr int kPlotWidth = 496;  // the area between the axes of a panel
constexpr int kPlotHeight = 238;
constexpr int kPanelWidth = (kPageWidth - kMargin) / 2;
constexpr int kPanelHeight = kPlotHeight + 98;
constexpr int kTickLabelWidth = 56;
constexpr int kOverhang = 4;  // of wide lines and dots beyond the plot area

constexpr std::string_view kTitle = R"(font-size="22" fill="#111827" font-weight="600")";
constexpr std::string_view kPanelTitle = R"(font-size="14" fill="#111827" font-weight="600")";
constexpr std::string_view kName = R"(font-size="13" fill="#111827")";
constexpr std::string_view kValue = R"(font-size="13" fill="#111827" text-anchor="end")";
constexpr std::string_view kSmall = R"(font-size="11" fill="#6b7280")";
constexpr std::string_view kSmallCentred = R"(font-size="11" fill="#6b7280" text-anchor="middle")";
constexpr std::string_view kSmallRight = R"(font-size="11" fill="#6b7280" text-anchor="end")";
constexpr std::string_view kGrid = R"(stroke="#e5e7eb")";
constexpr std::string_view kFrame = R"(stroke="#9ca3af")";
constexpr std::string_view kDot = R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}" stroke-width="1.5"/>)";
constexpr std::string_view kResume = R"(stroke="#9ca3af" stroke-dasharray="1 3")";
constexpr std::string_view kKill = R"(stroke="#dc2626" stroke-dasharray="1 3")";
constexpr std::array<std::string_view, 3> kXLabels = {"step", "tokens", "hours of training"};
constexpr std::array<std::string_view, 8> kColours = {"#2563eb", "#dc2626", "#059669", "#d97706",
                                                      "#7c3aed", "#0891b2", "#db2777", "#4b5563"};

/// From the ninth run on, colours repeat with another dash pattern.
std::string stroke_of(size_t run, double width) {
  constexpr std::array<std::string_view, 3> kDashes = {"none", "7 3", "2 3"};
  return format(R"(stroke="{}" stroke-width="{}" stroke-dasharray="{}")", kColours[run % 8], width,
                kDashes[run / 8 % 3]);
}

int exponent_of(double size) {
  return static_cast<int>(std::floor(std::log10(size) + 1e-9));  // log10 may be slightly too small
}

std::string tick_label(double tick, double step, double largest) {
  constexpr std::array<std::string_view, 4> kSuffixes = {"", "k", "M", "B"};
  if (tick == 0) return "0";
  const int exponent = exponent_of(largest);
  if (step >= 1 && exponent < 4) return with_thousands(std::llround(tick));
  const bool scientific = exponent < -2 || exponent > 12;
  const int unit = scientific ? exponent : exponent < 4 ? 0 : std::min(9, exponent / 3 * 3);
  return format("{:.{}f}{}", tick / std::pow(10, unit), std::max(0, unit - exponent_of(step)),
                scientific ? format("e{}", unit) : kSuffixes[static_cast<size_t>(unit / 3)]);
}

/// Markup is escaped; bytes that are not UTF-8 and characters that XML forbids become U+FFFD.
std::string escaped(std::string_view text) {
  constexpr std::string_view kMarkup = "&<>\"'";
  constexpr std::array<std::string_view, 5> kEntities = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string result;
  while (!text.empty()) {
    const size_t length = utf8_sequence_length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(1, length));
    const size_t markup = kMarkup.find(character);
    const bool control = static_cast<uint8_t>(text[0]) < 0x20 && text.find_first_of("\t\n\r") != 0;
    const bool allowed = length > 0 && !control && character != "\uFFFE" && character != "\uFFFF";
    result += !allowed ? kReplacementCharacter : markup < kMarkup.size() ? kEntities[markup] : character;
    text.remove_prefix(character.size());
  }
  return result;
}

/// At most `columns` characters, then an ellipsis if there are more.
std::string shortened(const std::string& name, int columns) {
  size_t end = 0;
  for (int i = 0; i < columns && end < name.size(); ++i) {
    end += std::max<size_t>(1, utf8_sequence_length(std::string_view(name).substr(end)));
  }
  return end == name.size() ? name : name.substr(0, end) + "…";
}

std::string text(double x, double y, std::string_view style, std::string_view content) {
  return format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, style, escaped(content));
}

std::string path(std::string_view points, std::string_view stroke) {
  return format("<path d=\"{}\" fill=\"none\" {}/>\n", points, stroke);
}

/// The plot area of one panel. Coordinates are pixels from its upper left corner.
struct Plot {
  Axis x_axis;
  Axis y_axis;
  std::string_view x_label = "step";

  double x(double step) const { return (step - x_axis.low) / (x_axis.high - x_axis.low) * kPlotWidth; }
  double y(double value) const { return (y_axis.high - value) / (y_axis.high - y_axis.low) * kPlotHeight; }

  std::string axes() const {
    std::string labels = text(kPlotWidth / 2.0, kPlotHeight + 36, kSmallCentred, x_label);
    std::string grid;
    std::string frame = format("M0,{}h{}", kPlotHeight, kPlotWidth);
    for (size_t i = 0; i < y_axis.ticks.size(); ++i) {
      grid += format("M0,{:.1f}h{}", y(y_axis.ticks[i]), kPlotWidth);
      labels += text(-8, y(y_axis.ticks[i]) + 4, kSmallRight, y_axis.labels[i]);
    }
    for (size_t i = 0; i < x_axis.ticks.size(); ++i) {
      frame += format("M{:.1f},{}v4", x(x_axis.ticks[i]), kPlotHeight);
      labels += text(x(x_axis.ticks[i]), kPlotHeight + 18, kSmallCentred, x_axis.labels[i]);
    }
    return path(grid, kGrid) + path(frame, kFrame) + labels;
  }

  /// A line that is interrupted at gaps; a point between two gaps becomes a short dash.
  std::string curve(const Curve& whole, std::string_view stroke) const {
    const Curve drawn = thinned_curve(whole, kPlotWidth);
    const auto gap = [&](size_t i) { return i >= drawn.y.size() || !std::isfinite(drawn.y[i]); };
    std::string points;
    for (size_t i = 0; i < drawn.x.size(); ++i) {
      if (gap(i)) continue;
      const bool begins = i == 0 || gap(i - 1);
      const bool alone = begins && gap(i + 1);
      points += format("{}{:.1f},{:.1f}{}", begins ? "M" : "L", x(drawn.x[i]) - (alone ? 2 : 0),
                       y(drawn.y[i]), alone ? "h4" : "");
    }
    return path(points, stroke);
  }
};

/// The lowest point of a curve.
std::optional<std::pair<double, double>> best_point(const Curve& curve) {
  std::optional<std::pair<double, double>> best;
  for (size_t i = 0; i < curve.y.size(); ++i) {
    if (std::isfinite(curve.y[i]) && (!best || curve.y[i] < best->second))
      best.emplace(curve.x[i], curve.y[i]);
  }
  return best;
}

struct Panel {
  std::string_view title;
  Curve RunSeries::* curve;
  Curve RunSeries::* dots = nullptr;  ///< a second curve, drawn as dots
  bool smooth = true;                 ///< draw the curve faintly and a smoothed one over it
  bool from_zero = true;
  bool cut_peaks = false;
  bool may_be_logarithmic = false;
};

constexpr std::array<Panel, 4> kPanels = {{
    {.title = "Loss",
     .curve = &RunSeries::loss,
     .dots = &RunSeries::validation_loss,
     .from_zero = false,
     .may_be_logarithmic = true},
    {.title = "Gradient norm", .curve = &RunSeries::grad_norm, .cut_peaks = true, .may_be_logarithmic = true},
    {.title = "Learning rate", .curve = &RunSeries::lr, .smooth = false},
    {.title = "Tokens per second", .curve = &RunSeries::tokens_per_second},
}};

Curve logarithms(Curve curve) {
  for (double& y : curve.y) y = y > 0 ? std::log10(y) : NAN;
  return curve;
}

/// The runs with the curves of a panel as they are drawn.
std::vector<RunSeries> drawn_runs(const Panel& panel, std::vector<RunSeries> runs, bool logarithmic) {
  for (RunSeries& run : runs) {
    if (!logarithmic) break;
    run.*panel.curve = logarithms(run.*panel.curve);
    if (panel.dots != nullptr) run.*panel.dots = logarithms(run.*panel.dots);
  }
  return runs;
}

/// Lines where the run was continued.
std::string draw_resumes(const Plot& plot, const RunSeries& run) {
  std::array<std::string, 2> lines;
  for (const ResumeMark& mark : run.resumes)
    lines[mark.died ? 1 : 0] += format("M{:.1f},0v{}", plot.x(mark.x), kPlotHeight);
  std::string svg;
  if (!lines[0].empty()) svg += path(lines[0], kResume);
  if (!lines[1].empty()) svg += path(lines[1], kKill);
  return svg;
}

/// "  ·  ┊ continued, red after a kill or failure", if some run was.
std::string note_of_resumes(const std::vector<RunSeries>& runs) {
  const auto has_some = [](const RunSeries& run) { return !run.resumes.empty(); };
  return std::any_of(runs.begin(), runs.end(), has_some) ? "┊ continued (red: after a kill or failure)  ·  "
                                                         : "";
}

std::string draw_panel(const Panel& panel, const std::vector<RunSeries>& given, const PlotStyle& style) {
  const bool logarithmic = style.logarithmic && panel.may_be_logarithmic;
  const std::vector<RunSeries> runs = drawn_runs(panel, given, logarithmic);
  std::vector<double> values;
  double first = INFINITY;
  double last = style.x == PlotX::steps ? 1 : 0;
  std::string note = panel.dots == nullptr ? "" : "smoothed";
  const auto add_values = [&](const Curve& curve) {
    values.insert(values.end(), curve.y.begin(), curve.y.end());
    return !curve.empty();
  };
  for (const RunSeries& run : runs) {
    add_values(run.*panel.curve);
    if (panel.dots != nullptr && add_values(run.*panel.dots))
      note = "training, smoothed  ·  ○ validation  ·  ● best";
    if (run.loss.empty()) continue;
    first = std::min(first, run.loss.x.front());
    last = std::max(last, run.loss.x.back());
  }
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (first < last / 20 || first >= last) first = 0;
  const bool recorded = !values.empty();
  if (!recorded) values = {0, 1};
  std::sort(values.begin(), values.end());
  double top = values.back();
  const double percentile = values[(values.size() - 1) * 199 / 200];  // the 99.5th
  if (panel.cut_peaks && !logarithmic && percentile > 0 && top > 3 * percentile) {
    // Rare peaks would flatten the rest of the curve.
    note = format("peaks cut (highest {})", short_number(top));
    top = 1.5 * percentile;
  }
  // Steps are whole numbers: no more ticks than steps, so that every tick is a whole number too.
  const int ticks = style.x == PlotX::steps ? static_cast<int>(std::clamp(last - first, 1.0, 7.0)) : 7;
  const Plot plot{nice_axis(first, last, ticks, false),
                  logarithmic
                      ? log_axis(std::pow(10, values[0]), std::pow(10, top))
                      : nice_axis(panel.from_zero ? std::min(0.0, values[0]) : values[0], top, 5, true),
                  kXLabels[static_cast<size_t>(style.x)]};
  if (panel.dots != nullptr) note = note_of_resumes(runs) + note;
  std::string svg = plot.axes() + text(0, -16, kPanelTitle, panel.title);
  svg += text(kPlotWidth, -16, kSmallRight, note);
  if (!recorded) return svg + text(kPlotWidth / 2.0, kPlotHeight / 2.0, kSmallCentred, "not recorded");
  // The inner svg clips the curves to the plot area and its overhang.
  svg += format(R"(<svg x="-{0}" y="-{0}" width="{1}" height="{2}" viewBox="-{0} -{0} {1} {2}">)", kOverhang,
                kPlotWidth + 2 * kOverhang, kPlotHeight + 2 * kOverhang);
  for (size_t run = 0; run < runs.size(); ++run) {
    const Curve& curve = runs[run].*panel.curve;
    svg += format(R"(<g stroke="{}" stroke-linejoin="round" stroke-linecap="round">)", kColours[run % 8]);
    svg += draw_resumes(plot, runs[run]);
    if (panel.smooth) svg += plot.curve(curve, R"(stroke-opacity="0.25")");
    svg += plot.curve(panel.smooth ? smoothed_curve(curve) : curve, stroke_of(run, panel.smooth ? 2 : 1.5));
    if (panel.dots != nullptr) {
      svg += plot.curve(runs[run].*panel.dots, R"(stroke-opacity="0.8" stroke-dasharray="3 3")");
      const Curve dots = thinned_curve(runs[run].*panel.dots, 15);
      for (size_t i = 0; i < dots.x.size(); ++i) {
        if (std::isfinite(dots.y[i])) svg += format(kDot, plot.x(dots.x[i]), plot.y(dots.y[i]), "#ffffff");
      }
      if (const auto best = best_point(runs[run].*panel.dots))
        svg += format(kDot, plot.x(best->first), plot.y(best->second), kColours[run % 8]);
    }
    svg += "</g>\n";
  }
  return svg + "</svg>\n";
}

/// "3.250 (3.125)": the last value and the lowest one, if that is another.
std::string last_and_best(const Curve& validation) {
  const std::string last = short_number(validation.last());
  const auto best = best_point(validation);
  return best && short_number(best->second) != last ? format("{} ({})", last, short_number(best->second))
                                                    : last;
}

/// A table of the runs and their last values.
std::string draw_table(const std::vector<RunSeries>& runs) {
  constexpr std::array<int, 8> kColumns = {kMargin + 36, 560, 660, 760, 870, 970, 1075, kPageWidth - kMargin};
  std::vector<std::array<std::string, 8>> rows = {{"run", "step", "tokens", "loss, smoothed",
                                                   "validation (best)", "grad norm", "learning rate",
                                                   "tokens/s"}};
  for (const RunSeries& run : runs) {
    const std::string step = run.steps == 0 ? "–" : with_thousands(run.steps);
    rows.push_back({shortened(run.name, 60), step, short_number(run.tokens_seen),
                    short_number(smoothed_curve(run.loss).last()), last_and_best(run.validation_loss),
                    short_number(run.grad_norm.last()), short_number(run.lr.last()),
                    short_number(run.tokens_per_second.last())});
  }
  std::string svg = path(format("M{},{}H{}", kMargin, kTableTop + 8, kPageWidth - kMargin), kGrid);
  for (size_t row = 0; row < rows.size(); ++row) {
    const double y = kTableTop + kRowHeight * static_cast<double>(row);
    svg += text(kColumns[0], y, row == 0 ? kSmall : kName, rows[row][0]);
    for (size_t i = 1; i < kColumns.size(); ++i) {
      svg += text(kColumns[i], y, row == 0 ? kSmallRight : kValue, rows[row][i]);
    }
    if (row > 0) svg += path(format("M{},{}h26", kMargin, y - 4), stroke_of(row - 1, 3));
  }
  return svg;
}

}  // namespace

Axis nice_axis(double low, double high, int wanted_ticks, bool round_ends) {
  if (!std::isfinite(low) || !std::isfinite(high)) return nice_axis(0, 1, wanted_ticks, round_ends);
  // Beyond these, the difference of two values or a tick's label overflows.
  low = std::clamp(low, -1e300, 1e300);
  high = std::clamp(high, -1e300, 1e300);
  // Narrower than this, ticks would be equal after rounding.
  const double size = std::max(std::abs(low), std::abs(high));
  if (size < 1e-300 || high - low <= size * 1e-6) {
    const double margin = size < 1e-300 ? 0.5 : size / 2;
    low -= margin;
    high += margin;
  }
  const double min_step = (high - low) / std::max(1, wanted_ticks);
  const double power = std::pow(10, exponent_of(min_step));
  const double ratio = min_step / power - 1e-9;
  const double step = power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
  const double first = round_ends ? std::floor(low / step + 1e-9) : std::ceil(low / step - 1e-9);
  const double last = round_ends ? std::ceil(high / step - 1e-9) : std::floor(high / step + 1e-9);
  Axis axis{round_ends ? first * step : low, round_ends ? last * step : high, {}, {}};
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  for (double index = first; index <= last; ++index) {
    axis.ticks.push_back(index * step);
    axis.labels.push_back(tick_label(axis.ticks.back(), step, largest));
  }
  return axis;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return "–";
  if (size >= 1e15 || (size < 1e-2 && value != 0)) {
    const std::string text = format("{:.1e}", value);  // "8.0e-04", shown as "8e-4"
    const size_t e = text.find('e');
    return format("{}e{}", text.substr(0, text[e - 1] == '0' ? e - 2 : e), std::stoi(text.substr(e + 1)));
  }
  if (size >= 1e6) return human_count(std::llround(value));
  if (size >= 1000) return with_thousands(std::llround(value));
  return format("{:.{}f}", value, size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

Axis log_axis(double low, double high) {
  const double first = std::log10(low);
  const double last = std::log10(high);
  const double margin = std::max(0.01, (last - first) * 0.03);
  Axis axis{first - margin, last + margin, {}, {}};
  const auto add = [&](double tick) {
    if (std::log10(tick) < axis.low || std::log10(tick) > axis.high) return;
    axis.ticks.push_back(std::log10(tick));
    axis.labels.push_back(tick_label(tick, tick, tick));
  };
  if (last - first < 1) {
    for (const double tick : nice_axis(low, high, 5, false).ticks) {
      if (tick <= 0) continue;
      add(tick);
      if (!axis.labels.empty()) axis.labels.back() = short_number(tick);
    }
    return axis;
  }
  const double decades = std::ceil((last - first) / 8);
  for (double power = std::floor(axis.low); power <= axis.high; power += decades) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit == 1 || last - first < 3) add(digit * std::pow(10, power));
    }
  }
  return axis;
}

std::string plot_svg(const std::vector<RunSeries>& runs, const PlotStyle& style) {
  const int plot_top = kTableTop + kRowHeight * static_cast<int>(runs.size()) + 64;
  const std::string title = runs.size() == 1 ? "Training of " + shortened(runs[0].name, 80)
                                             : format("{} training runs", runs.size());
  std::string svg = format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{2}" height="{0}" viewBox="0 0 {2} {0}" font-family="Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif">
<title>{1}</title>
<rect width="{2}" height="{0}" fill="#ffffff"/>
)",
      plot_top + 2 * kPanelHeight - 30, escaped(title), kPageWidth);
  svg += text(kMargin, 42, kTitle, title) + draw_table(runs);
  for (size_t i = 0; i < kPanels.size(); ++i) {
    svg += format("<g transform=\"translate({} {})\">\n{}</g>\n",
                  kMargin + kTickLabelWidth + (i % 2 == 0 ? 0 : kPanelWidth),
                  plot_top + (i < 2 ? 0 : kPanelHeight), draw_panel(kPanels[i], runs, style));
  }
  return svg + "</svg>\n";
}

}  // namespace stepforge
