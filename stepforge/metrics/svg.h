// Writing an SVG file piece by piece.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stepforge {

/// `text` as XML character data or attribute value: markup escaped; bytes that are no UTF-8, and characters
/// that XML forbids, become U+FFFD.
std::string xml_escape(std::string_view text);

/// A picture of `width` by `height` pixels on a white ground, so that it reads the same on a dark page.
/// Coordinates are pixels from the upper left corner. Colours are "#rrggbb".
class SvgCanvas {
 public:
  SvgCanvas(int width, int height, std::string_view title);

  struct TextStyle {
    int size = 12;
    std::string_view colour = "#374151";
    /// "start", "middle" or "end".
    std::string_view anchor = "start";
    bool bold = false;
  };
  struct LineStyle {
    std::string_view colour;
    double width = 1;
    double opacity = 1;
    /// "" for a solid line, else lengths: "6 3".
    std::string_view dashes{};
  };

  void text(double x, double y, std::string_view content, const TextStyle& style);
  void line(double x0, double y0, double x1, double y1, const LineStyle& style);
  /// Lines through the points.
  void polyline(const std::vector<std::pair<double, double>>& points, const LineStyle& style);
  /// A dot with a white heart.
  void dot(double x, double y, double radius, std::string_view colour);
  /// Until end_clip(), nothing is drawn outside of the rectangle.
  void begin_clip(double x, double y, double width, double height);
  void end_clip();

  std::string finish() &&;

 private:
  std::string body_;
  int clips_ = 0;
};

}  // namespace stepforge
