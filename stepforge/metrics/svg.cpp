// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/svg.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

std::string escaped(std::string_view text) {
  constexpr std::array<std::pair<char, std::string_view>, 5> entities = {
      {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}}};
  std::string result;
  while (!text.empty()) {
    const size_t length = utf8_sequence_length(text);
    const std::string_view character = text.substr(0, std::max<size_t>(1, length));
    text.remove_prefix(character.size());
    const auto first = static_cast<unsigned char>(character.front());
    const bool forbidden = (first < 0x20 && first != '\t' && first != '\n' && first != '\r') ||
                           character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF";
    if (length == 0 || forbidden) {
      result += kReplacementCharacter;
    } else {
      const auto* entity = std::find_if(entities.begin(), entities.end(),
                                        [&](const auto& pair) { return pair.first == character.front(); });
      result += entity == entities.end() ? character : entity->second;
    }
  }
  return result;
}

std::string attributes(const SvgStroke& stroke) {
  std::string text = format(R"(stroke="{}" stroke-width="{}")", stroke.colour, stroke.width);
  if (stroke.opacity < 1) text += format(R"( stroke-opacity="{}")", stroke.opacity);
  if (!stroke.dashes.empty()) text += format(R"( stroke-dasharray="{}")", stroke.dashes);
  return text;
}

}  // namespace

SvgCanvas::SvgCanvas(int width, int height, std::string_view title) {
  body_ = format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
                 R"(font-family="Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif">)"
                 "\n<title>{2}</title>\n"
                 R"(<rect width="{0}" height="{1}" fill="#ffffff"/>)"
                 "\n",
                 width, height, escaped(title));
}

void SvgCanvas::text(double x, double y, std::string_view content, const SvgText& style) {
  body_ += format(R"(<text x="{:.1f}" y="{:.1f}" font-size="{}" fill="{}")", x, y, style.size, style.colour);
  if (style.anchor != "start") body_ += format(R"( text-anchor="{}")", style.anchor);
  if (style.bold) body_ += R"( font-weight="600")";
  body_ += format(">{}</text>\n", escaped(content));
}

void SvgCanvas::line(double x0, double y0, double x1, double y1, const SvgStroke& stroke) {
  body_ += format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x0, y0, x1, y1,
                  attributes(stroke));
}

void SvgCanvas::polyline(const std::vector<std::pair<double, double>>& points, const SvgStroke& stroke) {
  std::string path;
  for (const auto& [x, y] : points) path += format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x, y);
  body_ += format(
      "<polyline points=\"{}\" fill=\"none\" stroke-linejoin=\"round\" stroke-linecap=\"round\" {}/>\n", path,
      attributes(stroke));
}

void SvgCanvas::dot(double x, double y, double radius, std::string_view colour) {
  body_ += format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"#ffffff\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
      x, y, radius, colour);
}

void SvgCanvas::begin_clip(double x, double y, double width, double height) {
  ++clips_;
  body_ += format(
      R"(<clipPath id="clip{0}"><rect x="{1:.1f}" y="{2:.1f}" width="{3:.1f}" height="{4:.1f}"/></clipPath>)"
      "\n<g clip-path=\"url(#clip{0})\">\n",
      clips_, x, y, width, height);
}

}  // namespace stepforge
