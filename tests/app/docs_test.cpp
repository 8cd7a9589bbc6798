// SPDX-License-Identifier: Apache-2.0
// Runs the commands and configurations that the documentation shows.
#include <cstring>

#include "stepforge/records/arrow_library.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

/// The indented blocks of a Markdown page, without their indentation; continued lines are joined.
Strings blocks_of(const fs::path& page) {
  Strings blocks;
  bool inside = false;
  std::ifstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with("    ");
    if (indented && !inside) blocks.emplace_back();
    if (indented) blocks.back() += line.substr(4) + "\n";
    inside = indented || (inside && line.empty());
  }
  return blocks;
}

/// The block that begins with `start`; fails the test if there is none.
std::string block_that_starts(const fs::path& page, const std::string& start) {
  for (const std::string& block : blocks_of(source_dir() / page)) {
    if (block.starts_with(start)) return block;
  }
  ADD_FAILURE() << page << " has no block that begins with " << start;
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in " << text;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string paragraphs(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += format("Paragraph {} of {}.\n{}\n", i, count, some_text(6));
  return text;
}

/// Runs a script with the built program as `stepforge`, in `folder`; stops at the first command that fails.
ProgramResult run_script(const fs::path& folder, const std::string& script) {
  const std::string setup = format("cd {0}\nexport PATH={1}:$PATH XDG_CACHE_HOME={0}/user-cache\n",
                                   folder.string(), binary_dir().string());
  return Child({"-e", "-c", setup + script}, "", {}, "bash").wait();
}

TEST(Readme, TheSampleConfigurationTrains) {
  const TempFolder folder;
  fs::create_directories(folder / "books");
  for (int book = 0; book < 20; ++book) write_text(folder / format("books/{}.txt", book), paragraphs(75));
  std::string letters;
  for (int i = 0; i < 3000; ++i)
    letters += format("{{\"text\": \"Letter {} tells of ships and of gulls.\"}}\n", i);
  write_text(folder / "letters.jsonl", letters);
  write_text(folder / "run.toml", block_that_starts("README.md", "preset = \"demo\""));
  const ProgramResult result = run_script(folder.path(),
                                          "stepforge train run.toml training.steps=1 model.dim=32 "
                                          "model.n_heads=2 model.n_kv_heads=1 model.n_layers=1");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

/// The commands of docs/finetune.md, with a tiny folder in place of the published one and fewer steps.
TEST(FinetunePage, CommandsRunOnAHuggingFaceFolder) {
  const TempFolder folder;
  const std::string commands = block_that_starts("docs/finetune.md", "stepforge eval");
  write_text(folder / "my-text.txt", paragraphs(60));
  const Strings training =
      Strings{"train"} + small_run(folder / "original") +
      Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "my-text.txt").string()),
              "tokenizer.type=bpe", "tokenizer.vocab_size=300", "training.steps=2"};
  ASSERT_EQ(run_program(training).exit_code, 0);
  output_of({"export", (folder / "original").string(), (folder / "Llama-3.2-1B").string()});
  const ProgramResult result = run_script(
      folder.path(), replaced(commands, "training.steps=500", "training.steps=4 validation.freq=2"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
    EXPECT_TRUE(fs::exists(folder / "my-model" / file)) << file;
}

constexpr const char* kChatTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

std::string chat_lines() {
  std::string lines;
  for (int i = 0; i < 80; ++i)
    lines += format(
        R"({{"messages": [{{"role": "user", "content": "number {0}"}}, {{"role": "assistant", "content": "it is {0}"}}]}})"
        "\n",
        i);
  return lines;
}

std::string pair_lines() {
  std::string lines;
  for (int i = 0; i < 80; ++i)
    lines += format(
        R"({{"prompt": [{{"role": "user", "content": "number {0}"}}], "chosen": "it is {0}", "rejected": "no"}})"
        "\n",
        i);
  return lines;
}

std::string judged_lines() {
  std::string lines;
  for (int i = 0; i < 80; ++i)
    lines += format(
        R"({{"prompt": [{{"role": "user", "content": "number {0}"}}], "completion": [{{"role": "assistant", "content": "it is {0}"}}], "label": {1}}})"
        "\n",
        i, i % 2 == 0);
  return lines;
}

TEST(FinetunePage, OneCommandTrainsOnConversations) {
  const TempFolder folder;
  write_text(folder / "my-text.txt", paragraphs(60));
  write_text(folder / "chat.jsonl", chat_lines());
  write_text(folder / "pairs.jsonl", pair_lines());
  write_text(folder / "judged.jsonl", judged_lines());
  const Strings training =
      Strings{"train"} + small_run(folder / "original") +
      Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "my-text.txt").string()),
              "tokenizer.type=bpe", "tokenizer.vocab_size=300", "training.steps=2"};
  ASSERT_EQ(run_program(training).exit_code, 0);
  output_of({"export", (folder / "original").string(), (folder / "Llama-3.2-1B-Instruct").string()});
  write_text(folder / "Llama-3.2-1B-Instruct" / "chat_template.jinja", kChatTemplate);
  for (const std::string& block : blocks_of(source_dir() / "docs/finetune.md")) {
    if (!block.starts_with("stepforge finetune")) continue;
    const ProgramResult result = run_script(folder.path(), block);
    EXPECT_EQ(result.exit_code, 0) << block << result.err;
    EXPECT_CONTAINS(result.out, "Next:");
  }
  for (const char* run : {"finetune-Llama-3.2-1B-Instruct", "full", "dpo", "kto"})
    EXPECT_TRUE(fs::exists(folder / "runs" / run / "checkpoint")) << run;
}

TEST(FinetunePage, CommandsRunOnConversations) {
  const TempFolder folder;
  const std::string commands =
      block_that_starts("docs/finetune.md", "stepforge train model.from=Llama-3.2-1B-Instruct");
  write_text(folder / "my-text.txt", paragraphs(60));
  write_text(folder / "chat.jsonl", chat_lines());
  const Strings training =
      Strings{"train"} + small_run(folder / "original") +
      Strings{format("data.sources=[{{path=\"{}\"}}]", (folder / "my-text.txt").string()),
              "tokenizer.type=bpe", "tokenizer.vocab_size=300", "training.steps=2"};
  ASSERT_EQ(run_program(training).exit_code, 0);
  output_of({"export", (folder / "original").string(), (folder / "Llama-3.2-1B-Instruct").string()});
  write_text(folder / "Llama-3.2-1B-Instruct" / "chat_template.jinja", kChatTemplate);
  const ProgramResult result = run_script(
      folder.path(), replaced(commands, "training.steps=500", "training.steps=4 validation.freq=2"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(folder / "my-chat-model" / "chat_template.jinja"), kChatTemplate);
  EXPECT_NE(result.out, "");
}

/// Little-endian numbers of four bytes.
std::string numbers_of(const std::vector<uint32_t>& numbers) {
  std::string bytes(numbers.size() * sizeof(uint32_t), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// A data set of MosaicML with one sample of a column "text".
void write_mds(const fs::path& set, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  const std::string shard = numbers_of({1, 12, 12 + 4 + size, size}) + text;
  fs::create_directories(set);
  write_text(set / "shard.00000.mds", shard);
  write_text(
      set / "index.json",
      format(
          R"({{"version": 2, "shards": [{{"column_names": ["text"], "column_encodings": ["str"], )"
          R"("column_sizes": [null], "raw_data": {{"basename": "shard.00000.mds", "bytes": {}}}, "samples": 1}}]}})",
          shard.size()));
}

/// The blocks of docs/data.md: sections of a configuration, and the command that makes a pair.
TEST(DataPage, EverySourceCanBeShown) {
  const TempFolder folder;
  fs::create_directories(folder / "books");
  write_text(folder / "books" / "a.txt", paragraphs(40));
  std::string web;
  for (int i = 0; i < 300; ++i) web += format("{{\"content\": \"Page {} of the web tells of ships.\"}}\n", i);
  write_text(folder / "web.jsonl", web);
  write_text(folder / "chat.jsonl", chat_lines());
  write_text(folder / "sharegpt.jsonl",
             R"({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]})");
  write_text(folder / "alpaca.jsonl", R"({"instruction": "Add.", "input": "1 2", "output": "3"})");
  write_text(folder / "pairs.jsonl", R"({"prompt": "two and two is", "completion": " four"})");
  fs::create_directories(folder / "data");
  write_text(folder / "data" / "identity.json",
             R"([{"instruction": "Who are you?", "input": "", "output": "A model."}])");
  write_text(folder / "data" / "dataset_info.json", R"({"identity": {"file_name": "identity.json"}})");
  write_text(folder / "template.jinja", kChatTemplate);
  const fs::path tables = source_dir() / "tests/golden/records/arrow";
  fs::copy_file(tables / "zstd.parquet", folder / "pages.parquet");
  fs::create_directories(folder / "news");
  fs::copy_file(tables / "zstd.arrow", folder / "news" / "news-train.arrow");
  fs::copy_file(tables / "kinds.arrow", folder / "news" / "news-test.arrow");
  write_text(folder / "reviews.csv", "id,body\n1,\"" + paragraphs(3) + "\"\n");
  write_mds(folder / "c4-mds", paragraphs(3));
  const std::string tokens(400, '\0');  // 200 of two bytes
  write_text(folder / "train.bin", tokens);
  for (const char* name : {"fineweb_train_000001.bin", "fineweb_train_000002.bin"})
    write_text(folder / name, numbers_of({20240520, 1, 200}) + std::string(1012, '\0') + tokens);
  const std::string build = block_that_starts("docs/data.md", "stepforge data build");
  const std::string train = block_that_starts("docs/data.md", "stepforge tokenizer train");
  const ProgramResult built =
      run_script(folder.path(), "gzip web.jsonl reviews.csv\n" + train + "\n" + build);
  ASSERT_EQ(built.exit_code, 0) << built.err;
  const std::string pack = block_that_starts("docs/data.md", "stepforge data pack");
  write_text(folder / "run.toml",
             "preset = \"debug\"\n[data]\nsources = [{path = \"books\"}]\npacking = \"soft\"\n"
             "[training]\nseq_len = 64\n");
  const ProgramResult packed = run_script(folder.path(), pack);
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  int shown = 0;
  for (const std::string& block : blocks_of(source_dir() / "docs/data.md")) {
    if (!block.starts_with("[data]")) continue;
    const bool is_table =
        block.find("pages.parquet") != std::string::npos || block.find("\"news\"") != std::string::npos;
    if (is_table && !fs::exists(arrow_library_path())) continue;
    const std::string chat =
        block.find("chat_template") == std::string::npos ? "chat_template = \"template.jinja\"\n" : "";
    write_text(folder / "run.toml", "preset = \"debug\"\n" + replaced(block, "[data]\n", "[data]\n" + chat) +
                                        "[tokenizer]\ntype = \"hf\"\npath = \"my-tokenizer\"\n"
                                        "[training]\nseq_len = 64\nglobal_batch_size = 8\n");
    const ProgramResult result = run_script(folder.path(), "stepforge data show run.toml");
    EXPECT_EQ(result.exit_code, 0) << block << result.err;
    EXPECT_CONTAINS(result.out, "rows of 64 tokens");
    ++shown;
  }
  EXPECT_EQ(shown, fs::exists(arrow_library_path()) ? 23 : 21);
  write_text(folder / "run.toml",
             "preset = \"debug\"\n[data]\nsources = [{path = \"chat.jsonl\", format = \"messages\"}]\n"
             "chat_template = \"template.jinja\"\n[training]\nseq_len = 64\n");
  const ProgramResult sample =
      run_script(folder.path(), block_that_starts("docs/data.md", "stepforge data show run.toml --sample"));
  EXPECT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_CONTAINS(sample.out, ">>it is 0<|endoftext|><<");
}

constexpr const char* kPipelines = "docs/pipelines.md";

TEST(PipelinesPage, TheComparisonIsThatOfTheProgram) {
  const TempFolder folder;
  const ProgramResult result =
      run_script(folder.path(), block_that_starts(kPipelines, "stepforge plan --preset llama2-70b"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_CONTAINS(result.out, block_that_starts(kPipelines, "  schedule"));
}

/// If one differs, run the block in docs/pictures.
TEST(PipelinesPage, PicturesAreThoseOfTheProgram) {
  const TempFolder folder;
  const ProgramResult result = run_script(folder.path(), block_that_starts(kPipelines, "plan="));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  int pictures = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(source_dir() / "docs/pictures")) {
    EXPECT_EQ(read_file(folder / file.path().filename()), read_file(file.path())) << file.path();
    ++pictures;
  }
  EXPECT_EQ(pictures, 7);
}

TEST(PipelinesPage, TheFirstCommandTrains) {
  const TempFolder folder;
  const std::string command = block_that_starts(kPipelines, "stepforge launch");
  const ProgramResult result =
      run_script(folder.path(), replaced(command, "--preset debug", "--preset debug training.steps=1"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(PipelinesPage, AScheduleOfOnesOwnIsPlannedAndTrained) {
  const TempFolder folder;
  write_text(folder / "eager.py", block_that_starts(kPipelines, "# 1F1B with about twice"));
  const std::string commands = block_that_starts(kPipelines, "python3 eager.py");
  const ProgramResult result =
      run_script(folder.path(), replaced(commands, "train $settings", "train $settings training.steps=1"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(folder / "eager.svg"));
  EXPECT_CONTAINS(result.out, "\n  eager.csv ");
}

TEST(PipelinesPage, ACycleIsRefusedWithTheMessageOfThePage) {
  const TempFolder folder;
  const std::string page = read_file(source_dir() / kPipelines);
  const Strings lines = {"0F0,0B0,0F1,0B1", "1F1,1F0,1B0,1B1"};
  for (const std::string& line : lines) EXPECT_CONTAINS(page, "`" + line + "`");
  const std::string path = (folder / "cycle.csv").string();
  write_text(path, lines[0] + "\n" + lines[1] + "\n");
  const std::string refusal =
      refusal_of({"plan", "--preset", "debug", "--world-size", "2", "parallelism.pipeline_parallel_degree=2",
                  "parallelism.pipeline_parallel_schedule_csv=" + path, "training.global_batch_size=2",
                  "training.local_batch_size=1"});
  std::string shown = block_that_starts(kPipelines, "pipeline schedule");
  shown.pop_back();
  EXPECT_CONTAINS(refusal, shown);
}

}  // namespace
}  // namespace stepforge::testing
