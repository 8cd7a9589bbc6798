#include "metrics/flops.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace stepforge {

namespace {

struct Peak {
  std::string_view model;
  /// A second word that the name must hold, "" for none.
  std::string_view variant;
  double tflops;
};

// The first entry that matches wins.
constexpr std::array peaks = {
    Peak{"A100", "", 312},   Peak{"H100", "NVL", 835}, Peak{"H100", "PCIe", 756}, Peak{"H100", "", 989},
    Peak{"H200", "", 989},   Peak{"H20", "", 148},     Peak{"B200", "", 2250},    Peak{"B300", "", 2250},
    Peak{"GB200", "", 2500}, Peak{"GB300", "", 2500},  Peak{"MI300X", "", 1300},  Peak{"MI355X", "", 2500},
};

bool same_letters(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  });
}

/// Whether one of the words of `text` (runs of letters and digits) is `word`: "H200" does not hold the word
/// "H20".
bool holds_word(std::string_view text, std::string_view word) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  auto begin = std::find_if(text.begin(), text.end(), is_letter);
  while (begin != text.end()) {
    const auto end = std::find_if_not(begin, text.end(), is_letter);
    if (same_letters(std::string_view(begin, end), word)) return true;
    begin = std::find_if(end, text.end(), is_letter);
  }
  return false;
}

}  // namespace

double peak_tflops_of(std::string_view device_name) {
  for (const Peak& peak : peaks) {
    if (!holds_word(device_name, peak.model)) continue;
    if (peak.variant.empty() || holds_word(device_name, peak.variant)) return peak.tflops;
  }
  return 0;
}

}  // namespace stepforge
