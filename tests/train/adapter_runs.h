// SPDX-License-Identifier: Apache-2.0
// Small runs that train adapters.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tests/train/ranks.h"

namespace stepforge::testing {

/// A Hugging Face folder of a model that was trained for two steps.
inline std::filesystem::path base_of_adapters(const TempFolder& folder, const Strings& more = {}) {
  TestRun(trainer_run(folder / "base") + Strings{"training.steps=2", "checkpoint.last_save_in_hf=true"} +
          more)
      .run();
  return folder / "base" / "hf" / "step-2";
}

inline Strings lora_run(const TempFolder& folder, const std::string& name, const std::filesystem::path& base,
                        const Strings& more = {}) {
  return trainer_run(folder / name) +
         Strings{format("checkpoint.initial_load_path={}", base.string()),
                 "adapter.type=lora",
                 "adapter.rank=4",
                 "training.steps=4",
                 "checkpoint.interval=2",
                 "lr_scheduler.warmup_steps=0",
                 "optimizer.lr=0.01"} +
         more;
}

inline Strings of_type(const char* type) {
  return {format("adapter.type={}", type)};
}

inline std::filesystem::path adapter_step(const TempFolder& folder, const std::string& name, int64_t step) {
  return folder / name / "checkpoint" / format("step-{}", step);
}

/// All matrices have rows of whole blocks, also on two tensor-parallel ranks.
inline const Strings kBlocks{"model.dim=128", "model.n_heads=4", "model.n_kv_heads=2", "model.head_dim=32",
                             "model.ffn_dim=128"};
inline const Strings kOrderedSums{"training.reduction=ordered", "training.global_batch_size=4",
                                  "training.local_batch_size=1"};

inline Strings frozen_as(std::string_view dtype) {
  return {format("model.frozen_dtype={}", dtype)};
}

/// The bits of the frozen masters of a run.
inline std::string frozen_bits(Trainer& trainer) {
  std::string bits;
  for (size_t u = 0; u < trainer.store->size(); ++u) {
    const UnitStore& unit = trainer.store->unit(u);
    if (!unit.spec().trainable)
      bits.append(static_cast<const char*>(unit.master().const_data_ptr()), unit.master().nbytes());
  }
  return bits;
}

/// Those before the first step.
class RecordFrozenBits : public Callback {
 public:
  explicit RecordFrozenBits(std::string& bits) : bits_(bits) {}
  std::string_view name() const override { return "bits"; }
  void init_end(Trainer& trainer) override { bits_ = frozen_bits(trainer); }

 private:
  std::string& bits_;
};

/// The numbers that the codes of a run stand for, by unit.
inline std::map<std::string, at::Tensor> decoded_units(Trainer& trainer) {
  std::map<std::string, at::Tensor> decoded;
  for (size_t u = 0; u < trainer.store->size(); ++u)
    if (const UnitStore& unit = trainer.store->unit(u); unit.coded())
      decoded[unit.spec().name] = unit.master_values();
  return decoded;
}

}  // namespace stepforge::testing
