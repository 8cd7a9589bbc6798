// SPDX-License-Identifier: Apache-2.0
// A data source: rows that count on from their number, "17 18 19 ...".
#include <stepforge/base/plugin.h>
#include <stepforge/plan/data_source_kind.h>

using namespace stepforge;

class Counting : public RowSource {
 public:
  Counting(const Tokenizer& tokenizer, int64_t seq_len) : tokenizer_(tokenizer), seq_len_(seq_len) {}
  const std::string& name() const override { return name_; }
  const std::string& fingerprint() const override { return name_; }
  int64_t rows() const override { return 1000; }
  int64_t seq_len() const override { return seq_len_; }
  int64_t tokens() const override { return rows() * seq_len_; }
  std::optional<int64_t> text_bytes() const override { return std::nullopt; }
  void read(int64_t number, Row& row) const override {
    row = {};
    for (; static_cast<int64_t>(row.tokens.size()) <= seq_len_; ++number) {
      const auto ids = tokenizer_.encode(std::to_string(number) + " ");
      row.tokens.insert(row.tokens.end(), ids.begin(), ids.end());
    }
    row.tokens.resize(static_cast<size_t>(seq_len_) + 1);  // the last token is only a label
  }

 private:
  const Tokenizer& tokenizer_;
  int64_t seq_len_;
  std::string name_ = "counting";
};

static std::shared_ptr<const RowSource> open_counting(const DataSourceRequest& request) {
  return std::make_shared<Counting>(*request.tokenizer, request.config.training.seq_len);
}

STEPFORGE_PLUGIN(registry) {
  registry.add(DataSourceKind{"counting", open_counting});
}
