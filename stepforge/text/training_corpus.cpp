#include "stepforge/text/training_corpus.h"

#include <algorithm>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

// Lines are handed to the counter in batches, so that all threads have work.
constexpr size_t batch_bytes = size_t{32} << 20;

bool is_jsonl(const fs::path& path) {
  return path.extension() == ".jsonl";
}

std::vector<fs::path> list_files(const std::vector<fs::path>& inputs) {
  if (inputs.empty()) throw UsageError("no text to train on: name text files, .jsonl files or folders");
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    if (!fs::exists(input)) throw UsageError(format("there is no file or folder {}", input.string()));
    if (!fs::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(input)) {
      const bool wanted = is_jsonl(entry.path()) || entry.path().extension() == ".txt";
      if (wanted && entry.is_regular_file()) found.push_back(entry.path());
    }
    if (found.empty())
      throw UsageError(format("the folder {} holds no .txt and no .jsonl file", input.string()));
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

/// The text of one line of JSON Lines.
std::string line_text(std::string_view line, const std::string& field, const std::string& place) {
  const Json object = parse_json(line, place);
  if (!object.is_object()) throw FormatError(format("{}: expected a JSON object", place));
  const auto found = object.find(field);
  if (found == object.end()) throw FormatError(format("{}: no field \"{}\" in this line", place, field));
  if (!found->is_string()) throw FormatError(format("{}: the field \"{}\" is no string", place, field));
  return found->get<std::string>();
}

void count_jsonl(const fs::path& path, const std::string& field, WordCounter& counter) {
  const MappedFile file(path);
  std::string_view rest = file.text();
  std::string batch;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    batch += line_text(line, field, format("{}:{}", path.string(), number));
    batch += end_of_text;
    if (batch.size() < batch_bytes) continue;
    counter.add(batch, path.string());
    batch.clear();
  }
  counter.add(batch, path.string());
}

}  // namespace

void count_corpus(const std::vector<fs::path>& inputs, const std::string& field, WordCounter& counter) {
  for (const fs::path& path : list_files(inputs)) {
    if (is_jsonl(path)) {
      count_jsonl(path, field, counter);
    } else {
      counter.add(MappedFile(path).text(), path.string());
    }
  }
}

}  // namespace stepforge
