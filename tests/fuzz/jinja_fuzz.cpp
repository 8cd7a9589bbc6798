// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for templates: any bytes are refused with an error, or render within the limits to UTF-8 text whose spans lie in
// it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "stepforge/base/utf8.h"
#include "stepforge/jinja/template.h"

namespace {

void require(bool rule) {
  if (!rule) std::abort();
}

const stepforge::Json& variables() {
  static const stepforge::Json values = {
      {"messages", {{{"role", "user"}, {"content", " é x"}}, {{"role", "assistant"}, {"content", nullptr}}}},
      {"tools", {{{"name", "f"}, {"n", 2.5}}}},
      {"a", 3},
      {"s", "text"}};
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  stepforge::jinja::RenderOptions options;
  options.max_steps = 20'000;
  options.max_output_bytes = 1 << 20;
  options.max_memory_bytes = 8 << 20;
  options.now = 0;
  try {
    const std::string source(reinterpret_cast<const char*>(data), size);
    const auto rendered = stepforge::jinja::Template::parse(source, "fuzz").render(variables(), options);
    const auto bytes = static_cast<int64_t>(rendered.text.size());
    require(bytes <= options.max_output_bytes &&
            stepforge::find_invalid_utf8(rendered.text) == std::string::npos);
    for (const auto& span : rendered.generation)
      require(0 <= span.begin && span.begin <= span.end && span.end <= bytes);
  } catch (const stepforge::Error&) {
    return 0;
  }
  return 0;
}
