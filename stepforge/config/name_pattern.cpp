// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/name_pattern.h"

#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr uint32_t kMatchLimit = 100000;

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

NamePattern::NamePattern(const std::string& text) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr)
    throw FormatError(format("not a regular expression: {}, at character {}", message_of(error), offset));
  code_ = std::shared_ptr<const pcre2_code>(
      code, [](const pcre2_code* old) { pcre2_code_free(const_cast<pcre2_code*>(old)); });
}

bool NamePattern::matches(std::string_view name) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                                 data.get(), context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    throw FormatError(format("\"{}\": {}; write it without nested repetitions", name, message_of(result)));
  return true;
}

}  // namespace stepforge
