// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for .tiktoken files and the tokenizer_config.json beside them, which follows a byte 0xFF. The bytes, which
// every file must have, come first with the ranks 0 to 255 unless the input begins with a line break.
#include "stepforge/base/format.h"
#include "stepforge/text/pipeline_tokenizer.h"
#include "stepforge/text/tokenizer_import.h"
#include "tests/fuzz/parts.h"

namespace {

std::string lines_of_bytes() {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (unsigned byte = 0; byte < 256; ++byte)
    text += stepforge::format("{}{}== {}\n", digits.substr(byte >> 2, 1), digits.substr((byte & 3) << 4, 1),
                              byte);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepforge;
  static const std::string bytes = lines_of_bytes();
  return fuzz::try_tokenizer([&] {
    const auto [lines, config] = fuzz::parts_of<2>(data, size);
    const std::string text = lines.starts_with('\n') ? lines : bytes + lines;
    TokenizerFiles files = {
        {"tokenizer.json", tokenizer_json_of_tiktoken(text, config, "r50k_base.tiktoken")}};
    return std::make_unique<PipelineTokenizer>(std::move(files), "fuzz");
  });
}
