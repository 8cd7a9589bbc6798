// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the files of a folder that make its chat template: tokenizer_config.json, special_tokens_map.json and
// chat_template.jinja, with bytes 0xFF between them; those that are empty are missing.
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "stepforge/base/format.h"
#include "stepforge/text/chat_template.h"
#include "tests/fuzz/parts.h"

namespace {

/// In memory where there is such a folder.
std::filesystem::path make_folder() {
  const std::filesystem::path memory = "/dev/shm";
  const auto parent = std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path();
  const auto folder = parent / stepforge::format("stepforge-fuzz-{}", getpid());
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepforge;
  static const std::filesystem::path folder = make_folder();
  const auto parts = fuzz::parts_of<3>(data, size);
  const std::array names = {"tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"};
  for (size_t i = 0; i < parts.size(); ++i) {
    std::filesystem::remove(folder / names[i]);
    if (!parts[i].empty()) std::ofstream(folder / names[i], std::ios::binary) << parts[i];
  }
  try {
    const ChatTemplate chat_template = ChatTemplate::load(folder);
    ChatTemplateOptions options{.add_generation_prompt = true};
    options.limits.max_steps = 20'000;
    options.limits.max_output_bytes = 1 << 20;
    options.limits.max_memory_bytes = 8 << 20;
    options.limits.now = 0;
    const Json messages = {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}};
    fuzz::require(find_invalid_utf8(chat_template.render(messages, options).text) == std::string_view::npos);
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
