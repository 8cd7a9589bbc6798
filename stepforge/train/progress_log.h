// SPDX-License-Identifier: Apache-2.0
// How far long work before the first step is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

/// Logs "reference: 300 of 1,000 rows" on rank 0, every 30 seconds at most.
class ProgressLog {
 public:
  /// `trainer` must outlive it.
  ProgressLog(const Trainer& trainer, std::string work, std::string units)
      : trainer_(&trainer), work_(std::move(work)), units_(std::move(units)) {}

  void log(int64_t done, int64_t all) {
    constexpr std::chrono::seconds kInterval(30);
    const auto now = std::chrono::steady_clock::now();
    if (!trainer_->is_main() || now - logged_ < kInterval) return;
    logged_ = now;
    trainer_->log.info("{}: {} of {} {}", work_, with_thousands(done), with_thousands(all), units_);
  }

 private:
  const Trainer* trainer_;
  std::string work_;
  std::string units_;
  std::chrono::steady_clock::time_point logged_ = std::chrono::steady_clock::now();
};

}  // namespace stepforge
