#include "stepforge/metrics/svg.h"

#include <cstddef>
#include <cstdint>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

bool forbidden_in_xml(std::string_view character) {
  if (character.size() == 1) {
    const char c = character[0];
    return static_cast<uint8_t>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r';
  }
  return character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF";
}

std::string stroke(const SvgCanvas::LineStyle& style) {
  std::string text = format(R"(stroke="{}" stroke-width="{}")", style.colour, style.width);
  if (style.opacity < 1) text += format(R"( stroke-opacity="{}")", style.opacity);
  if (!style.dashes.empty()) text += format(R"( stroke-dasharray="{}")", style.dashes);
  return text;
}

}  // namespace

std::string xml_escape(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = utf8_sequence_length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    text.remove_prefix(character.size());
    if (length == 0 || forbidden_in_xml(character)) {
      result += kReplacementCharacter;
    } else if (character == "&") {
      result += "&amp;";
    } else if (character == "<") {
      result += "&lt;";
    } else if (character == ">") {
      result += "&gt;";
    } else if (character == "\"") {
      result += "&quot;";
    } else if (character == "'") {
      result += "&#39;";
    } else {
      result += character;
    }
  }
  return result;
}

SvgCanvas::SvgCanvas(int width, int height, std::string_view title) {
  body_ = format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" )"
                 R"(font-family="Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif">)"
                 "\n<title>{2}</title>\n"
                 R"(<rect width="{0}" height="{1}" fill="#ffffff"/>)"
                 "\n",
                 width, height, xml_escape(title));
}

void SvgCanvas::text(double x, double y, std::string_view content, const TextStyle& style) {
  body_ += format(R"(<text x="{:.1f}" y="{:.1f}" font-size="{}" fill="{}")", x, y, style.size, style.colour);
  if (style.anchor != "start") body_ += format(R"( text-anchor="{}")", style.anchor);
  if (style.bold) body_ += R"( font-weight="600")";
  body_ += format(">{}</text>\n", xml_escape(content));
}

void SvgCanvas::line(double x0, double y0, double x1, double y1, const LineStyle& style) {
  body_ +=
      format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" {}/>)", x0, y0, x1, y1, stroke(style));
  body_ += '\n';
}

void SvgCanvas::polyline(const std::vector<std::pair<double, double>>& points, const LineStyle& style) {
  body_ += "<polyline points=\"";
  for (size_t i = 0; i < points.size(); ++i) {
    body_ += format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", points[i].first, points[i].second);
  }
  body_ +=
      format("\" fill=\"none\" stroke-linejoin=\"round\" stroke-linecap=\"round\" {}/>\n", stroke(style));
}

void SvgCanvas::dot(double x, double y, double radius, std::string_view colour) {
  body_ += format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="#ffffff" stroke="{}" stroke-width="1.5"/>)",
                  x, y, radius, colour);
  body_ += '\n';
}

void SvgCanvas::begin_clip(double x, double y, double width, double height) {
  ++clips_;
  body_ += format(
      R"(<clipPath id="clip{0}"><rect x="{1:.1f}" y="{2:.1f}" width="{3:.1f}" height="{4:.1f}"/></clipPath>)"
      "\n<g clip-path=\"url(#clip{0})\">\n",
      clips_, x, y, width, height);
}

void SvgCanvas::end_clip() {
  body_ += "</g>\n";
}

std::string SvgCanvas::finish() && {
  return std::move(body_) + "</svg>\n";
}

}  // namespace stepforge
