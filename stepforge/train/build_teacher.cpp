// SPDX-License-Identifier: Apache-2.0
// The build step "teacher": what it predicts for the training data, computed once or read again.
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/gather.h"
#include "stepforge/comm/rank0_first.h"
#include "stepforge/train/progress_log.h"
#include "stepforge/train/teacher_model.h"
#include "stepforge/train/teacher_targets.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

constexpr const char* kTeacherFile = "teacher.safetensors";

/// What each rank has predicted, in rank order. In pieces, as one text has a limit.
std::vector<std::string> gather_predictions(Communicator* ranks, const std::string& own) {
  if (ranks == nullptr) return {own};
  constexpr size_t kPiece = size_t{8} << 20;
  const std::vector<size_t> sizes = gather_values(*ranks, std::array{own.size()});
  std::vector<std::string> all(sizes.size());
  for (size_t begin = 0; begin < std::ranges::max(sizes); begin += kPiece) {
    const std::vector<std::string> pieces =
        gather_texts(*ranks, begin < own.size() ? own.substr(begin, kPiece) : "");
    for (size_t rank = 0; rank < all.size(); ++rank) all[rank] += pieces[rank];
  }
  return all;
}

void stop_if_interrupted(const Trainer& trainer) {
  const std::array own = {static_cast<char>(trainer.interrupted())};
  const bool stops = trainer.all_ranks == nullptr
                         ? trainer.interrupted()
                         : std::ranges::count(gather_values(*trainer.all_ranks, own), char{1}) > 0;
  if (stops)
    throw Error(
        "the run was interrupted before the predictions of its teacher were complete; the next start computes "
        "them again");
}

/// Rank 0 writes the predictions of all ranks, which take turns in the rows.
void predict_all(Trainer& trainer, const SecondModelFiles& files, const RowStream& every_row,
                 TargetsWriter* writer) {
  TeacherModel model(trainer, files);
  const int64_t rows = *every_row.total_rows();
  ProgressLog progress(trainer, "teacher", "rows");
  for (int64_t first = 0; first < rows; first += trainer.place.world_size) {
    stop_if_interrupted(trainer);
    const int64_t own = first + trainer.place.rank;
    const Batch batch = own < rows ? every_row.rows(own, 1) : padding_batch(every_row.seq_len(), 1);
    for (const std::string& bytes : gather_predictions(trainer.all_ranks.get(), model.predict(batch)))
      if (writer != nullptr) writer->add(bytes);
    progress.log(first, rows);
  }
}

void compute_targets(Trainer& trainer, const SecondModelFiles& files, const std::filesystem::path& file,
                     const TargetsIdentity& identity, const RowStream& every_row) {
  const auto begin = std::chrono::steady_clock::now();
  require_teacher_fits(trainer, files);
  if (trainer.is_main())
    trainer.log.info("computing what the teacher {} predicts for {} rows: {}",
                     trainer.config.distillation.teacher, with_thousands(*every_row.total_rows()),
                     model_summary(files.known.config.model));
  std::unique_ptr<TargetsWriter> writer;
  rank0_first(trainer.all_ranks.get(), [&](const ReportProgress& report) {
    if (trainer.is_main())
      writer = std::make_unique<TargetsWriter>(file, identity, labels_before_rows(every_row, report));
  });
  predict_all(trainer, files, every_row, writer.get());
  rank0_first(trainer.all_ranks.get(), [&](const ReportProgress&) {
    if (writer != nullptr) writer->publish();
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (trainer.is_main()) trainer.log.info("teacher: {:.1f} s, kept in {}", seconds.count(), file.string());
}

}  // namespace

void build_teacher(Trainer& trainer) {
  const DistillationConfig& distillation = trainer.config.distillation;
  if (!distillation.enabled()) return;
  const std::shared_ptr<const RowStream> every_row = trainer.data.train->every_row();
  const std::filesystem::path file = std::filesystem::path(trainer.config.run_dir) / kTeacherFile;
  TargetsIdentity identity{.data = content_hash(every_row->fingerprint() + trainer.tokenizer->fingerprint()),
                           .teacher = "",
                           .top_k = distillation.top_k,
                           .temperature = distillation.temperature};
  const bool is_there = is_on_rank0(trainer, file);
  // A run whose teacher has been removed since continues with what it predicted.
  if (!is_there || std::filesystem::exists(distillation.teacher)) {
    KnownModel known = known_model(distillation.teacher, trainer.config.model.plugins);
    identity.teacher = model_fingerprint(known);
    const std::string setting = format("distillation.teacher = \"{}\"", distillation.teacher);
    if (!is_there)
      compute_targets(trainer, open_second_model(setting, std::move(known)), file, identity, *every_row);
  }
  trainer.teacher = std::make_unique<TeacherTargets>(file, identity, every_row);
  if (is_there && trainer.is_main())
    trainer.log.info("the predictions of the teacher for {} labels are those in {}",
                     with_thousands(trainer.teacher->labels()), file.string());
}

}  // namespace stepforge
