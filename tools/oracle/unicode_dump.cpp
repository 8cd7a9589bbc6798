// SPDX-License-Identifier: Apache-2.0
// Prints the code points of each general category according to PCRE2, one line per category: "Lu 41-5A C0-D6 ...".
// Read by make_unicode_supplement.py.
#define PCRE2_CODE_UNIT_WIDTH 32
#include <cstdio>
#include <string>

#include <pcre2.h>

namespace {

bool matches(const pcre2_code* code, pcre2_match_data* data, PCRE2_UCHAR32 character) {
  const bool surrogate = character >= 0xD800 && character < 0xE000;
  return character < 0x110000 && !surrogate && pcre2_match(code, &character, 1, 0, 0, data, nullptr) > 0;
}

void print_category(const std::string& category) {
  const std::string pattern = "\\p{" + category + "}";
  const std::basic_string<PCRE2_UCHAR32> wide(pattern.begin(), pattern.end());
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(wide.data(), wide.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  std::printf("%s", category.c_str());
  long first = -1;
  for (PCRE2_UCHAR32 c = 0; c <= 0x110000; ++c) {
    const bool inside = matches(code, data, c);
    if (inside && first < 0) first = static_cast<long>(c);
    if (!inside && first >= 0) {
      std::printf(" %lX-%X", first, c - 1);
      first = -1;
    }
  }
  std::printf("\n");
  pcre2_match_data_free(data);
  pcre2_code_free(code);
}

}  // namespace

int main() {
  for (const char* category : {"Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "M", "P", "S"})
    print_category(category);
}
