// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/source_statistics.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

Json losses_json(const LossesByReason& losses) {
  Json json = Json::object();
  for (const auto& [reason, lost] : losses)
    json[reason] = {{"documents", lost.documents}, {"tokens", lost.tokens}, {"text_bytes", lost.text_bytes}};
  return json;
}

}  // namespace

std::vector<SourceStatistics> source_statistics(const RowStream& stream,
                                                const std::vector<std::string>& paths) {
  constexpr double kMillion = 1e6;
  std::vector<SourceStatistics> statistics;
  for (size_t i = 0; i < stream.sources().size(); ++i) {
    const auto& [name, source, rows] = stream.sources()[i];
    const double share = stream.share(i);
    statistics.push_back(
        {.name = name,
         .path = paths.at(i),
         .documents = source->documents(),
         .tokens = source->tokens(),
         .account = source->account() == nullptr ? std::nullopt : std::optional(*source->account()),
         .rows = source->rows(),
         .share = share,
         .epochs_per_million = kMillion * share / static_cast<double>(source->rows())});
  }
  return statistics;
}

std::vector<std::string> statistics_table(const std::vector<SourceStatistics>& sources) {
  const std::string header = "source";
  size_t width = header.size();
  for (const SourceStatistics& source : sources) width = std::max(width, source.name.size());
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, const auto&... cells) {
    lines.push_back(format("{:<{}}  {:>14}  {:>18}  {:>14}  {:>8}  {:>14}", name, width, cells...));
  };
  add(header, "documents", "tokens", "rows", "share", "epochs/1M rows");
  for (const SourceStatistics& source : sources) {
    add(source.name, with_thousands(source.documents), with_thousands(source.tokens),
        with_thousands(source.rows), format("{:.2f}%", 100.0 * source.share),
        format("{:.2f}", source.epochs_per_million));
  }
  std::ranges::copy(account_lines(sources), std::back_inserter(lines));
  return lines;
}

std::vector<std::string> account_lines(const std::vector<SourceStatistics>& sources) {
  std::vector<std::string> lines;
  for (const SourceStatistics& source : sources)
    if (source.account) lines.push_back(format("{}: {}", source.name, account_text(*source.account)));
  return lines;
}

Json to_json(const std::vector<SourceStatistics>& sources) {
  Json list = Json::array();
  for (const SourceStatistics& source : sources) {
    Json json = {
        {"name", source.name}, {"path", source.path}, {"rows", source.rows}, {"share", source.share}};
    if (source.account) {
      const RowAccount& account = *source.account;
      json.update({{"documents", account.documents},
                   {"tokens", account.tokens},
                   {"padding", account.padding},
                   {"labels", account.labels},
                   {"cut_documents", account.cut_documents},
                   {"cut_tokens", account.cut_tokens},
                   {"divided_documents", account.divided_documents},
                   {"unlabelled_documents", account.unlabelled_documents},
                   {"unlabelled_tokens", account.unlabelled_tokens},
                   {"unlabelled_rows", account.unlabelled_rows}});
    }
    json["dropped"] = losses_json(source.dropped);
    json["cut"] = losses_json(source.cut);
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace stepforge
