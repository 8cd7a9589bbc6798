// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/schedule/action_text.h"

namespace stepforge {

namespace {

constexpr int64_t kMaxCsvBytes = int64_t{64} << 20;
constexpr int kNoRank = -1;
constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::array<std::string_view, 7> kCommunication = {"SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                                            "UNSHARD", "RESHARD", "REDUCE_GRAD"};

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char letter) { return letter == ' ' || letter == '\t' || letter == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Removes the digits at the beginning of `text` and returns their number. Nothing if there are none, or if the number
/// is kMaxCsvActions or more, which no action of a complete schedule can have.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number >= kMaxCsvActions) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// Calls `use` with each part of `text` between separators.
template <typename Use>
void for_each_part(std::string_view text, char separator, const Use& use) {
  while (true) {
    const std::size_t end = text.find(separator);
    use(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  Schedule parse() {
    for_each_part(text_, '\n', [&](std::string_view line) {
      ++line_;
      begin_ = line.data();
      if (trimmed(line).empty()) return;
      schedule_.actions.emplace_back();
      for_each_part(line, ',', [&](std::string_view cell) { add_cell(trimmed(cell)); });
      if (schedule_.actions.back().empty()) fail(line, "this line, which is a rank, lists no computation");
    });
    if (count_ == 0) throw FormatError(format("{}: there are no actions", source_));
    const auto missing = std::ranges::find(schedule_.rank_of_stage, kNoRank);
    if (missing != schedule_.rank_of_stage.end())
      throw FormatError(format("{}: no line lists stage {}, but there is a stage {}", source_,
                               missing - schedule_.rank_of_stage.begin(), schedule_.stages() - 1));
    return std::move(schedule_);
  }

 private:
  [[noreturn]] void fail(std::string_view at, const std::string& fault) const {
    throw FormatError(format("{}:{}:{}: {}", source_, line_, at.data() - begin_ + 1, fault));
  }

  void add_cell(std::string_view cell) {
    if (cell.empty()) return;
    if (cell.front() != '(') {
      add_action(cell);
      return;
    }
    const std::size_t end = cell.find(')');
    if (end == std::string_view::npos || cell.substr(end + 1) != kOverlap)
      fail(cell, format("{} is not closed by \"){}\"", quoted_for_message(cell), kOverlap));
    for_each_part(cell.substr(1, end - 1), ';', [&](std::string_view part) { add_action(trimmed(part)); });
  }

  void add_action(std::string_view text) {
    std::string_view rest = text;
    const auto stage = take_number(rest);
    const auto digits =
        std::ranges::find_if(rest, [](char letter) { return letter >= '0' && letter <= '9'; });
    const std::string_view name = rest.substr(0, static_cast<std::size_t>(digits - rest.begin()));
    rest.remove_prefix(name.size());
    const auto micro_batch = take_number(rest);
    if (stage && rest.empty()) {
      if (std::ranges::find(kCommunication, name) != kCommunication.end()) return;
      const auto kind = name.size() == 1 ? action_kind(name.front()) : std::nullopt;
      if (kind && micro_batch) {
        add(text, {*kind, *stage, *micro_batch});
        return;
      }
    }
    fail(text, format("{} is not an action: write stage, F, B, I, W or L, and micro-batch, such as 2F3, each "
                      "number below {}",
                      quoted_for_message(text), kMaxCsvActions));
  }

  void add(std::string_view text, const Action& action) {
    if (++count_ > kMaxCsvActions) fail(text, format("more than {} actions", kMaxCsvActions));
    const auto stage = static_cast<std::size_t>(action.stage);
    const int rank = schedule_.ranks() - 1;
    if (stage >= schedule_.rank_of_stage.size()) schedule_.rank_of_stage.resize(stage + 1, kNoRank);
    int& listed = schedule_.rank_of_stage[stage];
    if (listed != kNoRank && listed != rank)
      fail(text, format("stage {} is on rank {} already; a stage is on one rank, and each line is a rank",
                        stage, listed));
    listed = rank;
    schedule_.micro_batches = std::max(schedule_.micro_batches, action.micro_batch + 1);
    schedule_.actions.back().push_back(action);
  }

  std::string_view text_;
  const std::string& source_;
  Schedule schedule_;
  int line_ = 0;
  const char* begin_ = nullptr;  ///< of the line
  int count_ = 0;
};

}  // namespace

Schedule parse_schedule_csv(std::string_view text, const std::string& source) {
  return CsvParser(text, source).parse();
}

Schedule read_schedule_csv(const std::filesystem::path& path) {
  return parse_schedule_csv(read_file(path, kMaxCsvBytes), path.string());
}

std::string schedule_csv(const Schedule& schedule) {
  std::string text;
  for (const auto& actions : schedule.actions) {
    std::vector<std::string> cells;
    cells.reserve(actions.size());
    for (const Action& action : actions) cells.push_back(action_text(action));
    text += join(cells, ",") + "\n";
  }
  return text;
}

}  // namespace stepforge
