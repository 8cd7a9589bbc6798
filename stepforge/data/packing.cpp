// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/data/peer_orders.h"

namespace stepforge {

namespace {

/// Documents packed together; the numbers are those of XTuner's soft packing.
constexpr size_t kChunkDocuments = 10000;
constexpr size_t kBufferDocuments = 100;
/// Documents that a row is chosen from, as in VeOmni's dynamic batches.
constexpr size_t kBudgetDocuments = 200;

/// Fills a table with whole documents, of which those longer than a row are cut.
class RowBuilder {
 public:
  RowBuilder(std::span<const int64_t> lengths, int64_t capacity) : lengths_(lengths), capacity_(capacity) {}

  /// The tokens of the document that a row can hold.
  int64_t used(int64_t document) const {
    return std::min(lengths_[static_cast<size_t>(document)], capacity_);
  }
  void add_row(const std::vector<int64_t>& documents) {
    for (const int64_t document : documents) {
      const int64_t end = used(document);
      const int64_t left = lengths_[static_cast<size_t>(document)] - end;
      table.pieces.push_back({document, 0, end});
      table.cut_documents += left > 0 ? 1 : 0;
      table.unused_tokens += left;
    }
    table.row_begins.push_back(std::ssize(table.pieces));
  }

  PackTable table;

 private:
  std::span<const int64_t> lengths_;
  int64_t capacity_;
};

/// Takes documents from the end of `chunk`. When the next one does not fit, the row is filled with the shortest
/// of the last ones that do, and the one that did not fit begins the next row.
void pack_soft(std::vector<int64_t> chunk, int64_t capacity, RowBuilder& rows) {
  std::vector<int64_t> row;
  int64_t filled = 0;
  while (!chunk.empty()) {
    const int64_t next = chunk.back();
    chunk.pop_back();
    if (row.empty() || filled + rows.used(next) <= capacity) {
      row.push_back(next);
      filled += rows.used(next);
      continue;
    }
    const size_t first = chunk.size() - std::min(chunk.size(), kBufferDocuments);
    std::vector<int64_t> buffer(chunk.begin() + static_cast<std::ptrdiff_t>(first), chunk.end());
    chunk.resize(first);
    std::vector<size_t> by_length(buffer.size());
    std::iota(by_length.begin(), by_length.end(), size_t{0});
    std::stable_sort(by_length.begin(), by_length.end(),
                     [&](size_t a, size_t b) { return rows.used(buffer[a]) < rows.used(buffer[b]); });
    std::vector<bool> taken(buffer.size(), false);
    for (const size_t i : by_length) {
      if (filled + rows.used(buffer[i]) > capacity) break;
      filled += rows.used(buffer[i]);
      row.push_back(buffer[i]);
      taken[i] = true;
    }
    for (size_t i = 0; i < buffer.size(); ++i)
      if (!taken[i]) chunk.push_back(buffer[i]);
    rows.add_row(row);
    row = {next};
    filled = rows.used(next);
  }
  if (!row.empty()) rows.add_row(row);
}

/// Longest first, each into the fullest row that has room: at most one row is half empty.
void pack_best_fit(std::vector<int64_t> chunk, int64_t capacity, RowBuilder& rows) {
  std::stable_sort(chunk.begin(), chunk.end(),
                   [&](int64_t a, int64_t b) { return rows.used(a) > rows.used(b); });
  std::vector<std::vector<int64_t>> open;
  std::set<std::pair<int64_t, size_t>> by_room;  // (free tokens, index in `open`)
  for (const int64_t document : chunk) {
    const int64_t length = rows.used(document);
    const auto found = by_room.lower_bound({length, 0});
    size_t row = open.size();
    int64_t room = capacity;
    if (found != by_room.end()) {
      std::tie(room, row) = *found;
      by_room.erase(found);
    } else {
      open.emplace_back();
    }
    open[row].push_back(document);
    by_room.emplace(room - length, row);
  }
  for (const auto& row : open) rows.add_row(row);
}

/// Each row takes, in their order, all documents that still fit of those that wait; the others wait on.
void pack_budget(const std::vector<int64_t>& documents, int64_t capacity, RowBuilder& rows) {
  std::vector<int64_t> waiting;
  int64_t tokens = 0;  // of those that wait
  auto next = documents.begin();
  while (true) {
    for (; next != documents.end() && (waiting.size() < kBudgetDocuments || tokens < capacity); ++next) {
      waiting.push_back(*next);
      tokens += rows.used(*next);
    }
    if (waiting.empty()) return;
    std::vector<int64_t> row;
    std::vector<int64_t> left;
    int64_t filled = 0;
    for (const int64_t document : waiting) {
      const int64_t length = rows.used(document);
      const bool fits = filled + length <= capacity;
      (fits ? row : left).push_back(document);
      filled += fits ? length : 0;
    }
    rows.add_row(row);
    tokens -= filled;
    waiting = std::move(left);
  }
}

/// The shuffled documents end to end, cut at every `capacity` tokens; the rest after the last full row is left.
PackTable pack_hard(std::span<const int64_t> lengths, const std::vector<int64_t>& order, int64_t capacity) {
  PackTable table;
  int64_t filled = 0;
  size_t complete = 0;  // pieces of full rows
  for (const int64_t document : order) {
    const int64_t length = lengths[static_cast<size_t>(document)];
    for (int64_t begin = 0; begin < length;) {
      const int64_t end = std::min(length, begin + capacity - filled);
      table.pieces.push_back({document, begin, end});
      filled += end - begin;
      begin = end;
      if (filled < capacity) continue;
      complete = table.pieces.size();
      table.row_begins.push_back(std::ssize(table.pieces));
      filled = 0;
    }
  }
  table.unused_tokens = filled;
  table.pieces.resize(complete);
  return table;
}

/// Numbers of the documents that are not empty, in the order `order`.
std::vector<int64_t> not_empty(std::span<const int64_t> lengths) {
  std::vector<int64_t> documents;
  for (size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] > 0) documents.push_back(static_cast<int64_t>(i));
  return documents;
}

}  // namespace

std::span<const Piece> PackTable::row(int64_t number) const {
  const auto begin = static_cast<size_t>(row_begins[static_cast<size_t>(number)]);
  const auto end = static_cast<size_t>(row_begins[static_cast<size_t>(number) + 1]);
  return std::span(pieces).subspan(begin, end - begin);
}

PackTable pack_documents(std::span<const int64_t> lengths, int64_t capacity, Packing packing, uint64_t seed) {
  std::vector<int64_t> documents = not_empty(lengths);
  const auto in_order = [&](const std::vector<int64_t>& order) {
    std::vector<int64_t> ordered;
    ordered.reserve(order.size());
    for (const int64_t i : order) ordered.push_back(documents[static_cast<size_t>(i)]);
    return ordered;
  };
  const auto word = static_cast<uint32_t>(seed);
  RowBuilder rows(lengths, capacity);
  if (packing == Packing::hard)
    return pack_hard(lengths, in_order(numpy_shuffle(std::ssize(documents), word)), capacity);
  if (packing == Packing::none) {
    for (const int64_t document : documents) rows.add_row({document});
    return std::move(rows.table);
  }
  if (packing == Packing::budget) {
    pack_budget(documents, capacity, rows);
    return std::move(rows.table);
  }
  if (packing != Packing::soft && packing != Packing::best_fit)
    throw Error("this packing makes no table of documents");
  documents = in_order(torch_randperm(std::ssize(documents), word));
  for (size_t begin = 0; begin < documents.size(); begin += kChunkDocuments) {
    const auto first = documents.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto count = std::min(kChunkDocuments, documents.size() - begin);
    std::vector<int64_t> chunk(first, first + static_cast<std::ptrdiff_t>(count));
    (packing == Packing::soft ? pack_soft : pack_best_fit)(std::move(chunk), capacity, rows);
  }
  return std::move(rows.table);
}

}  // namespace stepforge
