// The text a tokenizer is trained on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "stepforge/text/word_counts.h"

namespace stepforge {

/// Adds the words of all `inputs` to `counter`: text files, JSON Lines files (name ends in .jsonl; the string
/// `field` of each line is a text), and folders, from which all .txt and .jsonl files are taken, in
/// sub-folders too. Throws UsageError for an input that is missing or a folder without such files;
/// FormatError naming file and line or byte for text that is not UTF-8, a line that is no JSON object, or one
/// without the field.
void count_corpus(const std::vector<std::filesystem::path>& inputs, const std::string& field,
                  WordCounter& counter);

}  // namespace stepforge
