// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/schedule/action_text.h"

namespace stepforge {

namespace {

// Pixels.
constexpr double kRowHeight = 26;
constexpr double kRowGap = 4;
constexpr double kLeft = 64;    // names of ranks
constexpr double kRight = 190;  // numbers of ranks
constexpr double kTop = 40;     // title
constexpr double kLegendHeight = 44;
constexpr double kMargin = 12;
constexpr double kMinChart = 420;
constexpr double kMaxChart = 6000;
constexpr double kShortestBox = 16;  // two digits fit
constexpr double kDigitWidth = 6.6;  // at 11 px

struct Colour {
  int red = 0;
  int green = 0;
  int blue = 0;
};

struct Style {
  Colour colour;  ///< of the first stage of a rank
  const char* name = "";
};

/// In the order of ActionKind.
constexpr std::array<Style, 5> kStyles = {{{{147, 186, 240}, "forward"},
                                           {{124, 204, 190}, "backward"},
                                           {{108, 203, 214}, "input gradient"},
                                           {{150, 212, 130}, "weight gradient"},
                                           {{196, 170, 232}, "loss"}}};

/// `part` from 0 (unchanged) to 1 (black).
Colour darkened(const Colour& colour, double part) {
  const auto scaled = [&](int value) { return static_cast<int>(std::lround(value * (1 - part))); };
  return {.red = scaled(colour.red), .green = scaled(colour.green), .blue = scaled(colour.blue)};
}

std::string hex(const Colour& colour) {
  return format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

/// Black or white, whichever is easier to read on it: the weights are those of luma, ITU-R BT.601.
const char* text_colour(const Colour& colour) {
  return 299 * colour.red + 587 * colour.green + 114 * colour.blue > 128 * 1000 ? "#000" : "#fff";
}

/// With two digits, and without a sign at zero.
std::string pixels(double value) {
  const double rounded = std::round(value * 100) / 100;
  return format("{}", rounded == 0 ? 0.0 : rounded);
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    const bool control = static_cast<unsigned char>(letter) < ' ';
    if (letter == '&')
      result += "&amp;";
    else if (letter == '<')
      result += "&lt;";
    else if (letter == '>')
      result += "&gt;";
    else
      result += control ? ' ' : letter;  // XML has no control characters
  }
  return result;
}

class Picture {
 public:
  Picture(const Schedule& schedule, const Timeline& timeline) : schedule_(schedule), timeline_(timeline) {
    const double shortest = shortest_action();
    chart_ = std::clamp(kShortestBox * timeline.makespan / shortest, kMinChart, kMaxChart);
    scale_ = chart_ / timeline.makespan;
    number_chunks();
  }

  std::string draw(const std::string& title) {
    const double width = kLeft + chart_ + kRight;
    const double rows = schedule_.ranks() * (kRowHeight + kRowGap);
    const double height = kTop + rows + kLegendHeight;
    svg_ = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n",
        pixels(width), pixels(height));
    svg_ += "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    text(kMargin, kTop - 16, "start", "#000", title);
    for (std::size_t rank = 0; rank < schedule_.actions.size(); ++rank) draw_row(rank);
    draw_legend(kTop + rows + kLegendHeight / 2);
    return std::move(svg_) + "</svg>\n";
  }

 private:
  double shortest_action() const {
    double shortest = timeline_.makespan;
    for (const auto& times : timeline_.actions) {
      for (const ActionTime& time : times) {
        if (time.end > time.start) shortest = std::min(shortest, time.end - time.start);
      }
    }
    return shortest;
  }

  /// How many stages of its rank are before each stage.
  void number_chunks() {
    std::vector<int> counts(schedule_.actions.size(), 0);
    for (const int rank : schedule_.rank_of_stage) {
      chunk_of_stage_.push_back(counts[static_cast<std::size_t>(rank)]++);
      chunks_ = std::max(chunks_, chunk_of_stage_.back() + 1);
    }
  }

  Colour colour(const Action& action) const {
    constexpr double kLargestStep = 0.3;
    constexpr double kDarkest = 0.55;
    const int chunk = chunk_of_stage_[static_cast<std::size_t>(action.stage)];
    const double step = std::min(kLargestStep, kDarkest / std::max(1, chunks_ - 1));
    return darkened(kStyles.at(static_cast<std::size_t>(action.kind)).colour, step * chunk);
  }

  void draw_row(std::size_t rank) {
    const double y = kTop + static_cast<double>(rank) * (kRowHeight + kRowGap);
    const double baseline = y + kRowHeight / 2 + 4;
    text(kMargin, baseline, "start", "#000", format("rank {}", rank));
    svg_ += format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#f1f1f1\"/>\n", pixels(kLeft),
                   pixels(y), pixels(chart_), pixels(kRowHeight));
    const std::vector<Action>& actions = schedule_.actions[rank];
    for (std::size_t i = 0; i < actions.size(); ++i)
      draw_action(actions[i], timeline_.actions[rank][i], y, baseline);
    const RankTime& sums = timeline_.ranks[rank];
    text(kLeft + chart_ + kMargin, baseline, "start", "#000",
         format("bubble {:.1f} %, peak {:.2f}", 100 * sums.bubble_share, sums.peak_activations));
  }

  void draw_action(const Action& action, const ActionTime& time, double y, double baseline) {
    if (time.end <= time.start) return;
    const double x = kLeft + time.start * scale_;
    const double width = (time.end - time.start) * scale_;
    const Colour fill = colour(action);
    svg_ += format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#444\" stroke-width=\"0.5\">"
        "<title>{}</title></rect>\n",
        pixels(x), pixels(y), pixels(width), pixels(kRowHeight), hex(fill), action_text(action));
    const std::string number = format("{}", action.micro_batch);
    if (static_cast<double>(number.size()) * kDigitWidth <= width)
      text(x + width / 2, baseline, "middle", text_colour(fill), number);
  }

  /// The kinds that the schedule uses, and the shades of the stages of a rank.
  void draw_legend(double y) {
    double x = kLeft;
    const auto entry = [&](const Colour& fill, const std::string& name) {
      svg_ += format(
          "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\" stroke=\"#444\" "
          "stroke-width=\"0.5\"/>\n",
          pixels(x), pixels(y - 10), hex(fill));
      text(x + 18, y, "start", "#000", name);
      x += 18 + kDigitWidth * static_cast<double>(name.size()) + 14;
    };
    for (std::size_t kind = 0; kind < kStyles.size(); ++kind) {
      if (uses(static_cast<ActionKind>(kind))) entry(kStyles.at(kind).colour, kStyles.at(kind).name);
    }
    if (chunks_ > 1) text(x, y, "start", "#000", "darker: later stages of a rank");
  }

  bool uses(ActionKind kind) const {
    return std::ranges::any_of(schedule_.actions, [&](const std::vector<Action>& actions) {
      return std::ranges::find(actions, kind, &Action::kind) != actions.end();
    });
  }

  void text(double x, double y, const char* anchor, const char* fill, const std::string& content) {
    svg_ += format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", pixels(x), pixels(y),
                   anchor, fill, escaped(content));
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  double chart_ = 0;  ///< its width
  double scale_ = 0;  ///< pixels per second
  std::vector<int> chunk_of_stage_;
  int chunks_ = 0;
  std::string svg_;
};

}  // namespace

std::string schedule_svg(const Schedule& schedule, const Timeline& timeline, const std::string& title) {
  const auto size = [](const auto& actions) { return actions.size(); };
  if (!std::ranges::equal(schedule.actions, timeline.actions, {}, size, size) ||
      timeline.ranks.size() != schedule.actions.size() || timeline.makespan <= 0)
    throw Error("picture of a schedule: the times are not those of this schedule, or are all zero");
  return Picture(schedule, timeline).draw(title);
}

}  // namespace stepforge
