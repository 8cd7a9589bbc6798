// SPDX-License-Identifier: Apache-2.0
// The trainer with a custom data source and callback: a small Llama learns to add. See docs/extending.md.
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <stepforge/base/random.h>
#include <stepforge/config/load.h>
#include <stepforge/data/row_stream.h>
#include <stepforge/engines/world.h>
#include <stepforge/train/trainer.h>

using namespace stepforge;

/// Rows of additions, "37+5=42;8+61=69;...", generated when read. Row i is the same in every run and on every
/// rank.
class Additions : public RowSource {
 public:
  Additions(const Tokenizer& tokenizer, int64_t seq_len, uint64_t seed)
      : tokenizer_(tokenizer),
        seq_len_(seq_len),
        seed_(seed),
        fingerprint_("additions " + std::to_string(seed)) {}

  const std::string& name() const override { return name_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  int64_t rows() const override { return 10000; }
  int64_t seq_len() const override { return seq_len_; }
  int64_t tokens() const override { return rows() * seq_len_; }
  std::optional<int64_t> text_bytes() const override { return std::nullopt; }

  void read(int64_t number, Row& row) const override {
    row = {};
    for (uint64_t i = 0; row.tokens.size() <= static_cast<size_t>(seq_len_); ++i) {
      const auto draws = philox(seed_, static_cast<uint64_t>(number), i);
      const uint32_t left = draws[0] % 100, right = draws[1] % 100;
      const auto ids = tokenizer_.encode(std::to_string(left) + "+" + std::to_string(right) + "=" +
                                         std::to_string(left + right) + ";");
      row.tokens.insert(row.tokens.end(), ids.begin(), ids.end());
    }
    row.tokens.resize(static_cast<size_t>(seq_len_) + 1);  // the last token is only a label
  }

 private:
  const Tokenizer& tokenizer_;
  int64_t seq_len_;
  uint64_t seed_;
  std::string name_ = "additions";
  std::string fingerprint_;
};

/// Prints the lowest loss of the run. Every rank has its own callback; all see the loss of the whole step.
class LowestLoss : public Callback {
 public:
  std::string_view name() const override { return "lowest_loss"; }
  void step_end(Trainer& trainer) override { lowest_ = std::min(lowest_, trainer.last_step.loss); }
  void train_end(Trainer& trainer) override {
    if (trainer.is_main())
      std::printf("lowest loss %.4f in %d steps\n", lowest_, static_cast<int>(trainer.state.step));
  }

 private:
  double lowest_ = std::numeric_limits<double>::infinity();
};

void use_additions(Trainer& trainer) {
  const TrainingConfig& training = trainer.config.training;
  trainer.config.model.vocab_size = trainer.tokenizer->vocab_size();
  const auto source = std::make_shared<Additions>(*trainer.tokenizer, training.seq_len, training.seed);
  trainer.data.train = RowStream::mixture({{.source = source}}, training.seed, /*shuffle=*/true);
}

int main(int argc, char** argv) {
  std::vector<std::string> settings = {"preset=debug", "run_dir=runs/additions", "training.steps=60"};
  settings.insert(settings.end(), argv + 1, argv + argc);
  std::unique_ptr<World> world;
  try {
    const LoadedConfig loaded = load_config({}, settings);
    world = make_world(discover_ranks(process_environment()), loaded.config.comm);
    Logger log;
    Trainer trainer(loaded, log, /*interrupts=*/nullptr, world.get());
    trainer.replace_build_step("data", use_additions);
    trainer.add_callback(std::make_unique<LowestLoss>());
    trainer.build();
    trainer.run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    if (world != nullptr) world->abort(error.what());  // so that no other rank waits for this one
    return 1;
  }
}
