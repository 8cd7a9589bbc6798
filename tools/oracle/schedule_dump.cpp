// SPDX-License-Identifier: Apache-2.0
// Prints the schedules that schedule_oracle.py asks for. Reads lines "NAME RANKS STAGES_PER_RANK MICRO_BATCHES"; writes for
// each its CSV, one line per rank, and an empty line.
#include <iostream>
#include <string>

#include "stepforge/schedule/csv.h"
#include "stepforge/schedule/generators.h"

int main() {
  try {
    std::string name;
    int ranks = 0;
    int stages = 0;
    int micro_batches = 0;
    while (std::cin >> name >> ranks >> stages >> micro_batches) {
      const auto kind = stepforge::find_schedule(name);
      std::cout << schedule_csv(stepforge::make_schedule(kind, ranks, stages, micro_batches)) << "\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
