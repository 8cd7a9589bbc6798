// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_teacher.h"

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "stepforge/comm/rank0_first.h"
#include "stepforge/prove/exact_spec.h"
#include "stepforge/train/teacher_targets.h"

namespace stepforge {

namespace {

/// Of all labels, different ones for those that are near each other.
std::vector<float> exact_targets(int64_t labels, int64_t count) {
  std::vector<float> targets;
  for (int64_t label = 0; label < labels; ++label) {
    for (int64_t k = 0; k < count; ++k)
      targets.push_back(static_cast<float>((7 * label + 64 * k) % kExactVocabulary));
    for (int64_t k = 0; k < count; ++k) targets.push_back(static_cast<float>(1 + (label + k) % 3));
  }
  return targets;
}

void write_exact_targets(const std::filesystem::path& file, const TargetsIdentity& identity,
                         const std::vector<int64_t>& offsets) {
  const std::vector<float> targets = exact_targets(offsets.back(), identity.top_k);
  TargetsWriter writer(file, identity, offsets);
  writer.add({reinterpret_cast<const char*>(targets.data()), targets.size() * sizeof(float)});
  writer.publish();
}

}  // namespace

void build_exact_teacher(Trainer& trainer) {
  const Config& config = trainer.config;
  if (!config.distillation.enabled()) return;
  const std::shared_ptr<const RowStream> every_row = trainer.data.train->every_row();
  const std::filesystem::path file = std::filesystem::path(config.run_dir) / "teacher.safetensors";
  const TargetsIdentity identity{
      .data = every_row->fingerprint(), .teacher = "", .top_k = config.distillation.top_k};
  rank0_first(trainer.all_ranks.get(), [&](const ReportProgress& report) {
    if (trainer.is_main()) write_exact_targets(file, identity, labels_before_rows(*every_row, report));
  });
  trainer.teacher = std::make_unique<TeacherTargets>(file, identity, every_row);
}

}  // namespace stepforge
