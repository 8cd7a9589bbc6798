// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/row_account.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Calls `use(token, counts)` for tokens [0, end) in order.
template <typename Use>
void for_each_counted(const IndexedDataset& dataset, int64_t end, const Use& use) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  std::vector<uint8_t> counted;
  for (int64_t begin = 0; begin < end; begin += kBlock) {
    counted.resize(static_cast<size_t>(std::min(kBlock, end - begin)));
    dataset.read_counted(begin, counted);
    for (size_t i = 0; i < counted.size(); ++i) use(begin + static_cast<int64_t>(i), counted[i] != 0);
  }
}

/// Adds what is predicted in a piece of a document, and returns how many of it are labels. `fills_row`: nothing follows it.
int64_t add_piece(const IndexedDataset& dataset, const Piece& piece, bool fills_row, RowAccount& account) {
  const DatasetIndex& index = dataset.index();
  const int64_t begin = index.document_begin(piece.document);
  int64_t end = begin + piece.end;
  if (fills_row && end < index.document_begin(piece.document + 1)) ++end;  // the last label of the row
  const int64_t first = begin + piece.begin + 1;
  if (first >= end) return 0;
  int64_t labels = end - first;
  account.predicted += labels;
  if (dataset.has_mask()) {
    std::vector<uint8_t> counted(static_cast<size_t>(end - first));
    dataset.read_counted(first, counted);
    labels = std::ranges::count_if(counted, [](uint8_t value) { return value != 0; });
  }
  account.labels += labels;
  return labels;
}

std::string counted_of(int64_t count, int64_t all, std::string_view noun) {
  return format("{} of {} {}s", with_thousands(count), with_thousands(all), noun);
}

}  // namespace

std::vector<int64_t> labels_of_documents(const IndexedDataset& dataset, int64_t capacity) {
  const DatasetIndex& index = dataset.index();
  std::vector<int64_t> labels(static_cast<size_t>(index.documents()), 0);
  const auto end_of = [&](int64_t document) {
    const int64_t begin = index.document_begin(document);
    return std::min(index.document_begin(document + 1), begin + capacity + 1);
  };
  if (!dataset.has_mask()) {
    for (int64_t document = 0; document < index.documents(); ++document)
      labels[static_cast<size_t>(document)] =
          std::max<int64_t>(0, end_of(document) - index.document_begin(document) - 1);
    return labels;
  }
  int64_t document = 0;
  for_each_counted(dataset, index.tokens(), [&](int64_t token, bool counts) {
    while (index.document_begin(document + 1) <= token) ++document;
    if (counts && token > index.document_begin(document) && token < end_of(document))
      ++labels[static_cast<size_t>(document)];
  });
  return labels;
}

RowAccount account_of(const IndexedDataset& dataset, const PackTable& table, int64_t seq_len) {
  RowAccount account{.rows = table.rows(),
                     .cut_documents = table.cut_documents,
                     .cut_tokens = table.unused_tokens,
                     .unlabelled_documents = table.unlabelled_documents,
                     .unlabelled_tokens = table.unlabelled_tokens};
  std::vector<int64_t> pieces(static_cast<size_t>(dataset.index().documents()), 0);
  for (int64_t row = 0; row < table.rows(); ++row) {
    int64_t tokens = 0;
    int64_t labels = 0;
    for (const Piece& piece : table.row(row)) {
      tokens += piece.end - piece.begin;
      labels += add_piece(dataset, piece, tokens == seq_len, account);
      ++pieces[static_cast<size_t>(piece.document)];
    }
    account.tokens += tokens;
    account.unlabelled_rows += labels == 0 ? 1 : 0;
  }
  account.padding = table.rows() * seq_len - account.tokens;
  account.documents = std::ranges::count_if(pieces, [](int64_t count) { return count > 0; });
  account.divided_documents = std::ranges::count_if(pieces, [](int64_t count) { return count > 1; });
  return account;
}

RowAccount account_of_concat(const IndexedDataset& dataset, int64_t rows, int64_t seq_len) {
  const DatasetIndex& index = dataset.index();
  const int64_t used = rows * seq_len;
  RowAccount account{.rows = rows, .tokens = used, .predicted = used, .cut_tokens = index.tokens() - used};
  std::vector<int64_t> labels(static_cast<size_t>(rows), seq_len);
  if (dataset.has_mask()) {
    std::ranges::fill(labels, 0);
    for_each_counted(dataset, used + 1, [&](int64_t token, bool counts) {
      if (counts && token > 0) ++labels[static_cast<size_t>((token - 1) / seq_len)];
    });
  }
  std::vector<uint8_t> counts(1);
  for (int64_t document = 0; document < index.documents(); ++document) {
    const int64_t begin = index.document_begin(document);
    const int64_t end = index.document_begin(document + 1);
    if (begin == end || begin > used) continue;
    if (begin > 0) {
      if (dataset.has_mask()) dataset.read_counted(begin, counts);
      labels[static_cast<size_t>((begin - 1) / seq_len)] -= !dataset.has_mask() || counts[0] != 0 ? 1 : 0;
      --account.predicted;
    }
    if (begin == used) continue;
    ++account.documents;
    account.divided_documents += begin / seq_len != (std::min(end, used) - 1) / seq_len || end > used ? 1 : 0;
  }
  account.labels = std::reduce(labels.begin(), labels.end(), int64_t{0});
  account.unlabelled_rows = std::ranges::count(labels, 0);
  return account;
}

void require_labels(const RowAccount& account, const std::string& name, int64_t documents, int64_t seq_len) {
  if (account.labels > 0) return;
  throw UsageError(
      format("{}: none of its {} documents has a label in a row of {} tokens, so nothing can be learned from "
             "it: use a larger training.seq_len, data.too_long = \"proportional\", which keeps a part of "
             "every answer, or other records",
             name, with_thousands(documents), seq_len));
}

std::vector<std::string> account_notes(const RowAccount& account, std::string_view noun, int64_t seq_len) {
  std::vector<std::string> notes;
  const int64_t all = account.documents + account.unlabelled_documents;
  if (account.cut_documents > 0) {
    notes.push_back(format("{} are longer than a row of {} tokens and were cut; {} tokens are not used",
                           counted_of(account.cut_documents, all, noun), seq_len,
                           with_thousands(account.cut_tokens)));
  }
  if (account.unlabelled_documents > 0) {
    notes.push_back(format("{} ({} tokens) have no label in a row of {} tokens and are left out",
                           counted_of(account.unlabelled_documents, all, noun),
                           with_thousands(account.unlabelled_tokens), seq_len));
  }
  if (account.divided_documents > 0 && noun != "document") {
    notes.push_back(
        format("{} are cut at the ends of rows, so that answers lose their questions; "
               "data.packing = \"best_fit\" keeps them whole",
               counted_of(account.divided_documents, all, noun)));
  }
  if (account.unlabelled_rows > 0) {
    notes.push_back(format("{} of {} rows have no label, and nothing is learned from them",
                           with_thousands(account.unlabelled_rows), with_thousands(account.rows)));
  }
  return notes;
}

std::string account_text(const RowAccount& account) {
  std::string text =
      format("{} documents, {} tokens, {} labels, {:.1f}% padding", with_thousands(account.documents),
             with_thousands(account.tokens), with_thousands(account.labels),
             100.0 * static_cast<double>(account.padding) /
                 static_cast<double>(std::max<int64_t>(1, account.tokens + account.padding)));
  if (account.cut_documents > 0) text += format(", {} cut", with_thousands(account.cut_documents));
  if (account.divided_documents > 0)
    text += format(", {} divided", with_thousands(account.divided_documents));
  if (account.unlabelled_documents > 0)
    text += format(", {} left out", with_thousands(account.unlabelled_documents));
  return text;
}

}  // namespace stepforge
