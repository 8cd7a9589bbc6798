// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/concat_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

ConcatRows::ConcatRows(std::shared_ptr<const IndexedDataset> dataset, int64_t seq_len, int64_t vocab_size,
                       std::optional<int64_t> text_bytes, const std::string& source)
    : dataset_(std::move(dataset)),
      seq_len_(seq_len),
      vocab_size_(vocab_size),
      text_bytes_(text_bytes),
      name_(source.empty() ? dataset_->name() : source) {
  const int64_t count = dataset_->index().tokens();
  if (seq_len < 1) throw UsageError(format("sequence length {}: it must be at least 1", seq_len));
  if (count <= seq_len) {
    throw UsageError(
        format("{} holds {} tokens, too few for one row of {} tokens and its last label: use more text or a "
               "smaller training.seq_len",
               name_, count, seq_len));
  }
  rows_ = (count - 1) / seq_len;
  account_ = account_of_concat(*dataset_, rows_, seq_len);
  require_labels(account_, name_, dataset_->index().documents(), seq_len);
  fingerprint_ = content_hash(format("packed {} {}", dataset_->content_key(), seq_len));
}

void ConcatRows::read(int64_t number, Row& row) const {
  row.tokens.clear();
  row.counted.clear();
  dataset_->append(number * seq_len_, seq_len_ + 1, vocab_size_, row);
  find_document_starts(number, row.document_starts);
}

int64_t ConcatRows::attention_cost(int64_t number) const {
  std::vector<int32_t> starts;
  find_document_starts(number, starts);
  return stepforge::attention_cost(starts, seq_len_);
}

void ConcatRows::find_document_starts(int64_t number, std::vector<int32_t>& starts) const {
  const DatasetIndex& index = dataset_->index();
  const int64_t first = number * seq_len_;
  starts.clear();
  int64_t last_start = first;
  for (int64_t document = index.document_of(first) + 1; document < index.documents(); ++document) {
    const int64_t start = index.document_begin(document);
    if (start > first + seq_len_) break;
    // An empty document begins where the next one does.
    if (start > last_start) starts.push_back(static_cast<int32_t>(start - first));
    last_start = start;
  }
}

RowRange::RowRange(std::shared_ptr<const RowSource> whole, int64_t first, int64_t count)
    : whole_(std::move(whole)),
      first_(first),
      count_(count),
      fingerprint_(content_hash(format("rows {} {} of {}", first, count, whole_->fingerprint()))) {
  const RowAccount* const all = whole_->account();
  if (all == nullptr) return;
  const auto part = [&](int64_t of_all) {
    return std::llround(static_cast<double>(of_all) * static_cast<double>(count) /
                        static_cast<double>(whole_->rows()));
  };
  account_ = {.rows = count,
              .documents = part(all->documents),
              .tokens = part(all->tokens),
              .predicted = part(all->predicted),
              .labels = part(all->labels)};
  account_->padding = count * seq_len() - account_->tokens;
}

int64_t RowRange::documents() const {
  const double share = static_cast<double>(count_) / static_cast<double>(whole_->rows());
  return std::max<int64_t>(1, std::llround(share * static_cast<double>(whole_->documents())));
}

std::optional<int64_t> RowRange::text_bytes() const {
  return bytes_of_part(whole_->text_bytes(), tokens(), whole_->tokens());
}

}  // namespace stepforge
