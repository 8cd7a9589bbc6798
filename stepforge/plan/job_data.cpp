#include "stepforge/plan/job_data.h"

#include <algorithm>
#include <cstdlib>

#include "stepforge/base/error.h"
#include "stepforge/data/text_source.h"
#include "stepforge/text/bpe_trainer.h"
#include "stepforge/text/training_corpus.h"
#include "stepforge/text/word_counts.h"

namespace stepforge {

namespace {

bool is_synthetic(const DataSourceConfig& source) {
  return source.format == "synthetic";
}

std::filesystem::path default_cache_dir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return std::filesystem::path(cache) / "stepforge" / "data";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : ".") / ".cache" / "stepforge" / "data";
}

std::unique_ptr<Tokenizer> train_tokenizer(const Config& config, const std::filesystem::path& folder,
                                           Logger& log) {
  const auto& tokenizer = config.tokenizer;
  WordCounter counter;
  for (const auto& source : config.data.sources) {
    if (is_synthetic(source) || counter.bytes() >= tokenizer.train_bytes) continue;
    const TextSource text(
        {{source.path}, parse_text_format(source.format), DocumentMode::file, source.field});
    for (size_t file = 0; file < text.files().size(); ++file) {
      for (const TextChunk& chunk : text.chunks(file, int64_t{1} << 20)) {
        if (counter.bytes() >= tokenizer.train_bytes) break;
        text.read(chunk, [&](std::string_view document) { counter.add(document, source.path); });
      }
    }
  }
  if (counter.counts().empty()) {
    throw UsageError(
        "tokenizer.type = \"bpe\" without tokenizer.path: no text source to train a tokenizer on");
  }
  const TrainedBpe trained =
      train_bpe(counter.counts(), {.vocab_size = static_cast<int32_t>(tokenizer.vocab_size)});
  auto made = make_bpe_tokenizer(trained);
  made->save_pretrained(folder);
  log.info("trained a BPE tokenizer of {} tokens on {} of text: {}", with_thousands(trained.vocab_size),
           human_bytes(counter.bytes()), folder.string());
  return made;
}

}  // namespace

int64_t planned_vocabulary(const Config& config) {
  if (config.model.vocab_size > 0) return config.model.vocab_size;
  if (config.tokenizer.type == "bytes") return make_byte_tokenizer()->vocab_size();
  if (const auto& path = config.tokenizer.path; !path.empty()) return load_tokenizer(path)->vocab_size();
  return config.tokenizer.vocab_size;
}

std::filesystem::path run_tokenizer_folder(const Config& config) {
  return std::filesystem::path(config.run_dir) / "tokenizer";
}

std::unique_ptr<Tokenizer> tokenizer_of_run(const Config& config) {
  if (config.tokenizer.type == "bytes") return make_byte_tokenizer();
  const std::filesystem::path folder = run_tokenizer_folder(config);
  return std::filesystem::exists(folder / "tokenizer.json") ? load_tokenizer(folder) : nullptr;
}

std::unique_ptr<Tokenizer> job_tokenizer(const Config& config, Logger& log) {
  const std::filesystem::path folder = run_tokenizer_folder(config);
  const auto& tokenizer = config.tokenizer;
  if (tokenizer.type == "bytes") return make_byte_tokenizer();
  if (!tokenizer.path.empty()) return load_tokenizer(tokenizer.path);
  if (tokenizer.type == "hf") throw UsageError("tokenizer.type = \"hf\" needs tokenizer.path");
  if (std::filesystem::exists(folder / "tokenizer.json")) return load_tokenizer(folder);
  return train_tokenizer(config, folder, log);
}

DataPlan data_plan(const Config& config, int64_t vocab_size) {
  const auto& data = config.data;
  const auto convert = [](const std::vector<DataSourceConfig>& sources) {
    std::vector<SourceSpec> specs;
    for (const auto& source : sources)
      specs.push_back({source.path, source.weight, source.format, source.field});
    return specs;
  };
  DataPlan plan;
  plan.sources = convert(data.sources);
  plan.validation_sources = convert(data.validation);
  plan.validation_fraction = data.validation_fraction;
  plan.documents = data.document;
  plan.seq_len = config.training.seq_len;
  plan.seed = static_cast<uint64_t>(data.seed);
  plan.shuffle = data.shuffle;
  plan.cache_dir = data.cache_dir.empty() ? default_cache_dir() : std::filesystem::path(data.cache_dir);
  plan.vocab_size = vocab_size;
  plan.synthetic.samples = std::max<int64_t>(1, data.synthetic_tokens / config.training.seq_len);
  plan.synthetic.document_length = data.synthetic_document_length;
  return plan;
}

}  // namespace stepforge
