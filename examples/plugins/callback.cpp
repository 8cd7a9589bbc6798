// SPDX-License-Identifier: Apache-2.0
// A callback with a state: the lowest loss of a run and all its restarts, logged with the other metrics.
#include <algorithm>
#include <limits>

#include <stepforge/base/plugin.h>
#include <stepforge/train/callback_kinds.h>
#include <stepforge/train/trainer.h>

using namespace stepforge;

class LowestLoss : public PreUpdateCallback {
 public:
  std::string_view name() const override { return "lowest_loss"; }
  /// The loss and the norm of this step are known, the weights are still the old ones.
  void pre_update(Trainer& trainer) override { lowest_ = std::min(lowest_, trainer.last_step.loss); }
  void log(Trainer&, MetricsRecord& record) override { record.add("lowest_loss", lowest_); }
  void save(Trainer& trainer, const std::filesystem::path& folder) override {
    if (trainer.is_main()) trainer.log.info("lowest loss {}, saved in {}", lowest_, folder.string());
  }
  Json state(Trainer&) override { return lowest_; }
  void restore(Trainer&, const std::vector<Json>& of_ranks) override { lowest_ = of_ranks.at(0); }

 private:
  double lowest_ = std::numeric_limits<double>::max();
};

static std::unique_ptr<Callback> lowest_loss(const Config&) {
  return std::make_unique<LowestLoss>();
}

STEPFORGE_PLUGIN(registry) {
  registry.add(CallbackKind{"lowest_loss", lowest_loss});
}
