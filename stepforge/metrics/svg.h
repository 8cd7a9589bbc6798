// SPDX-License-Identifier: Apache-2.0
// Writing an SVG file piece by piece.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stepforge {

struct SvgText {
  int size = 12;
  std::string_view colour = "#374151";  ///< all colours are "#rrggbb"
  std::string_view anchor = "start";    ///< "start", "middle" or "end"
  bool bold = false;
};

struct SvgStroke {
  std::string_view colour;
  double width = 1;
  double opacity = 1;
  std::string_view dashes{};  ///< "" for a solid line, else lengths: "6 3"
};

/// A picture of `width` by `height` pixels on a white ground, so that it looks the same on a dark page.
/// Coordinates are pixels from the upper left corner. Text may hold any bytes: markup is escaped; bytes that
/// are not UTF-8 and characters that XML forbids become U+FFFD.
class SvgCanvas {
 public:
  SvgCanvas(int width, int height, std::string_view title);
  void text(double x, double y, std::string_view content, const SvgText& style);
  void line(double x0, double y0, double x1, double y1, const SvgStroke& stroke);
  void polyline(const std::vector<std::pair<double, double>>& points, const SvgStroke& stroke);
  /// A circle with a white centre.
  void dot(double x, double y, double radius, std::string_view colour);
  /// Until end_clip(), nothing is drawn outside of the rectangle.
  void begin_clip(double x, double y, double width, double height);
  void end_clip() { body_ += "</g>\n"; }
  /// The whole file.
  std::string finish() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
  int clips_ = 0;
};

}  // namespace stepforge
