// SPDX-License-Identifier: Apache-2.0
// Names and texts of files from outside cannot steer the terminal, wherever a message or listing shows them.
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

class Escapes : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) const {
    return folder_.write(name, bytes).string();
  }
  Strings show(const std::string& source, const Strings& more = {}) const {
    return Strings{"data", "show"} + small_run(folder_ / "run") +
           Strings{format("data.sources=[{{{}}}]", source)} + more;
  }
  /// What both streams show, which must hold the escaped text.
  static void expect_escaped(const Strings& args) {
    const ProgramResult result = run_program(args);
    const std::string shown = result.out + result.err;
    EXPECT_EQ(shown.find('\x1b'), std::string::npos) << shown;
    EXPECT_EQ(shown.find('\x07'), std::string::npos) << shown;
    EXPECT_TRUE(contains(shown, "\\x1B") || contains(shown, "\\u001b") || contains(shown, "\\u001B"))
        << shown;
  }

  TempFolder folder_;
};

TEST_F(Escapes, OfKeysAndValuesOfAConfiguration) {
  expect_escaped({"plan", write("a.toml", "\"\\u001b[2J\" = 1\n")});
  expect_escaped({"plan", write("b.toml", "[training]\n\"\\u001b]0;title\\u0007\" = 1\n")});
  expect_escaped({"plan", write("c.toml", "[training]\nsteps = \"\\u001b[2J\"\n")});
  expect_escaped({"config", "show", write("d.toml", "run_dir = \"\\u001b[2J\"\n")});
  expect_escaped(
      {"config", "convert", write("e.yaml", "training_args:\n  \"\\x1b[2J\": 1\nlearning_rate: 1\n")});
}

TEST_F(Escapes, OfKeysOfAModelFolder) {
  const auto from = [&](const std::string& name, std::string_view json) {
    write(name + "/config.json", json);
    return Strings{"plan", "model.from=" + (folder_ / name).string()};
  };
  expect_escaped(from("type", R"({"model_type": "\u001b[2J"})"));
  expect_escaped(from("twice", R"({"model_type": "llama", "\u001b[2J": 1, "\u001b[2J": 2})"));
  expect_escaped(from("rope", R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 256, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_scaling": {"rope_type": "linear", "factor": 2.0, "\u001b[2J": 1}})"));
}

TEST_F(Escapes, OfFieldsOfRecords) {
  expect_escaped(show(format("path = \"{}\"", write("a.jsonl", "{\"\\u001b[2J\": \"x\"}\n"))));
  expect_escaped(show(format("path = \"{}\"", write("a.csv", "\x1b[2J,b\n1,2\n"))));
  const std::string turns = write("turns.jsonl", R"({"conversations": [{"from": "\u001b[2J", "value": "x"}]})"
                                                 "\n");
  expect_escaped(show(format("path = \"{}\", format = \"sharegpt\"", turns)));
}

TEST_F(Escapes, OfNamesOfDataSets) {
  const std::string info = write("info/dataset_info.json", R"({"\u001b[2J": {"script_url": "x"}})");
  expect_escaped(show(format("path = \"{}\", dataset = \"none\"", info)));
  expect_escaped(show(format("path = \"{}\", dataset = \"\\u001b[2J\"", info)));
}

TEST_F(Escapes, OfTemplates) {
  const std::string chat =
      write("chat.jsonl",
            R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]})"
            "\n");
  const std::string refusing = write("refuse.jinja", "{{ raise_exception('no\x1b[2J\nhere') }}");
  expect_escaped(
      show(format("path = \"{}\", format = \"messages\"", chat), {"data.chat_template=" + refusing}));
}

TEST_F(Escapes, OfNamesOfSourcesAndFiles) {
  const std::string text = write("a.txt", std::string(4096, 'x'));
  expect_escaped(show(format("path = \"{}\", name = \"\\u001b[2J\"", text)));
  write("texts/\x1b[2J.jsonl", "{\"no\": 1}\n");
  expect_escaped(show(format("path = \"{}\"", (folder_ / "texts").string())));
  write("skipped/\x1b[2J.parquet.part", "x");
  write("skipped/a.txt", std::string(4096, 'x'));
  expect_escaped(show(format("path = \"{}\"", (folder_ / "skipped").string())));
}

}  // namespace
}  // namespace stepforge::testing
