// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/staged.h"
#include "stepforge/text/tokenizer.h"
#include "stepforge/text/tokenizer_files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/text/definitions.h"

namespace stepforge::testing {
namespace {

using Ids = std::vector<int32_t>;

void write(const std::filesystem::path& path, const Json& json) {
  std::filesystem::create_directories(path.parent_path());
  write_file_atomic(path, json.dump());
}

Json special(const std::string& content) {
  return {{"content", content}, {"special", true}};
}

/// The bytes, "<|endoftext|>" as 256, and `more` after it.
Json bytes_with(const Json& more, const Json& normalizer = nullptr) {
  Json definition = Json::parse(tokenizer_json({}, kGpt2Pattern));
  for (const Json& token : more) {
    Json added = {{"id", definition["added_tokens"].size() + 256}};
    added.update(token);
    definition["added_tokens"].push_back(added);
  }
  definition["normalizer"] = normalizer;
  return definition;
}

std::optional<int32_t> id_of(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<int32_t>());
}

TEST(ModelTokens, GiveTheIdsRolesAndFlagsOfTransformers) {
  const Json golden = read_json_file(source_dir() / "tests/golden/text/model_tokens.json");
  ASSERT_GE(golden["cases"].size(), 30U);
  for (const Json& test : golden["cases"]) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const TempFolder folder;
    write(folder / "tokenizer.json", bytes_with(test["inner"], test["normalizer"]));
    for (const auto& [name, content] : test["files"].items()) write(folder / name, content);
    const auto tokenizer = load_tokenizer(folder.path());
    for (size_t i = 0; i < golden["texts"].size(); ++i)
      EXPECT_EQ(tokenizer->encode(golden["texts"][i].get<std::string>()), test["ids"][i].get<Ids>())
          << golden["texts"][i];
    Ids special;
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id)
      if (tokenizer->is_special(id)) special.push_back(id);
    EXPECT_EQ(special, test["special"].get<Ids>());
    EXPECT_EQ(tokenizer->vocab_size(), test["size"].get<int32_t>());
    EXPECT_EQ(tokenizer->bos_id(), id_of(test["bos"]));
    const bool has_fallback = !test["files"].contains("tokenizer_config.json");
    if (!has_fallback || !test["eos"].is_null()) {
      EXPECT_EQ(tokenizer->eos_id(), id_of(test["eos"]));
    }
  }
}

TEST(ModelTokens, AreTheSameTokenizerWhereverTheyAreListed) {
  const TempFolder folder;
  write(folder / "a/tokenizer.json", bytes_with(Json::array({special("<A>")})));
  write(folder / "b/tokenizer.json", bytes_with(Json::array()));
  write(folder / "b/added_tokens.json", {{"<A>", 257}});
  write(folder / "b/special_tokens_map.json", {{"additional_special_tokens", {"<A>"}}});
  const auto inner = load_tokenizer(folder / "a");
  const auto beside = load_tokenizer(folder / "b");
  EXPECT_EQ(beside->encode("<A>"), inner->encode("<A>"));
  beside->save_pretrained(folder / "c");
  EXPECT_EQ(load_tokenizer(folder / "c")->fingerprint(), beside->fingerprint());
}

TEST(ModelTokens, ContradictionsNameFileTokenAndBothIds) {
  const TempFolder folder;
  const auto fault_of = [&](const Json& inner, const char* name, const Json& content) {
    write(folder / "tokenizer.json", bytes_with(inner));
    write(folder / name, content);
    std::string fault = message_of<FormatError>([&] { load_tokenizer(folder.path()); });
    std::filesystem::remove(folder / name);
    return fault;
  };
  const Json inner = {special("<A>"), special("<B>")};
  const auto decoder = [](const Json& tokens) { return Json{{"added_tokens_decoder", tokens}}; };
  EXPECT_CONTAINS(fault_of(inner, "tokenizer_config.json", decoder({{"258", special("<A>")}})),
                  "tokenizer_config.json", "added_tokens_decoder.258", "<A>", "258", "257");
  EXPECT_CONTAINS(fault_of(inner, "tokenizer_config.json", decoder({{"257", special("<C>")}})), "<C>", "257",
                  "259");
  EXPECT_CONTAINS(
      fault_of(inner, "tokenizer_config.json", decoder({{"259", special("<C>")}, {"260", special("<C>")}})),
      "<C>", "259", "260");
  EXPECT_CONTAINS(fault_of(inner, "tokenizer_config.json", decoder({{"300", special("<C>")}})), "<C>", "300",
                  "259", "holes");
  EXPECT_CONTAINS(fault_of(inner, "tokenizer_config.json", decoder({{"x", special("<C>")}})), "\"x\"");
  EXPECT_CONTAINS(fault_of(inner, "tokenizer_config.json", decoder({{"259", "<C>"}})), "259", "object");
  EXPECT_CONTAINS(fault_of(inner, "added_tokens.json", {{"<A>", 258}}), "added_tokens.json", "<A>", "258",
                  "257");
  EXPECT_CONTAINS(fault_of(inner, "added_tokens.json", {{"<C>", "259"}}), "added_tokens.json", "<C>");
  EXPECT_CONTAINS(fault_of(inner, "special_tokens_map.json", {{"pad_token", 3}}), "special_tokens_map.json",
                  "pad_token");
}

TEST(ModelTokens, StoredTruncationAndPaddingAreNotedAndLeftOut) {
  Json definition = good_definition();
  const auto plain = tokenizer_of(definition);
  EXPECT_TRUE(plain->notes().empty());
  definition["truncation"] = {
      {"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  definition["padding"] = {{"strategy", {{"Fixed", 8}}}, {"pad_id", 0}};
  const auto tokenizer = tokenizer_of(definition);
  EXPECT_EQ(tokenizer->encode("a b c d"), plain->encode("a b c d"));
  EXPECT_EQ(tokenizer->fingerprint(), plain->fingerprint());
  ASSERT_EQ(tokenizer->notes().size(), 1U);
  EXPECT_CONTAINS(tokenizer->notes()[0], "truncation", "max_length", "padding", "not used");
}

TEST(TokenizerFiles, OfAModelFolderAreSavedAgainAndTheOthersNamed) {
  const TempFolder folder;
  write(folder / "in/tokenizer.json", good_definition());
  for (const char* name : {"tokenizer.model", "tokenizer_config.json", "preprocessor_config.json",
                           "vocab.txt", "additional_chat_templates/tool_use.jinja"})
    write(folder / "in" / name, Json::object());
  for (const char* name : {"README.md", "config.json", "generation_config.json", "model.safetensors",
                           "original/params.json", "modeling_x.py", ".gitattributes"})
    write(folder / "in" / name, Json::object());
  load_tokenizer(folder / "in")->save_pretrained(folder / "out");
  for (const auto& [name, content] : read_tokenizer_files(folder / "in"))
    EXPECT_EQ(read_file(folder / "out" / name), content) << name;
  EXPECT_EQ(read_tokenizer_files(folder / "in").size(), 6U);
  EXPECT_EQ(files_left_behind(folder / "in"),
            (std::vector<std::string>{"README.md", "modeling_x.py", "original/"}));
}

}  // namespace
}  // namespace stepforge::testing
