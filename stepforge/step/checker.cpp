#include "stepforge/step/checker.h"

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

std::string place_text(const StepProgram& program, std::size_t operation) {
  if (operation >= program.operations.size()) return "end of the program";
  return format("operation {} ({})", operation, operation_text(program, program.operations[operation]));
}

}  // namespace

ProgramError::ProgramError(const StepProgram& program, std::size_t operation, const std::string& reason)
    : Error(format("rank {}, {}: {}", program.rank, place_text(program, operation), reason)),
      rank_(program.rank),
      operation_(operation) {}

HappensBefore::HappensBefore(const StepProgram& program) {
  const std::size_t count = program.operations.size();
  lane_.resize(count);
  place_.resize(count);
  finished_.resize(count);
  std::array<int, kLanes> lane_size{};
  std::array<std::array<int, kLanes>, kLanes>
      lane_end{};  // what has finished when the lane's last operation has
  for (std::size_t i = 0; i < count; ++i) {
    const Operation& operation = program.operations[i];
    const auto lane = static_cast<std::size_t>(operation.lane);
    lane_[i] = lane;
    place_[i] = lane_size.at(lane)++;
    finished_[i] = lane_end.at(lane);
    for (const int needed : operation.needs) {
      const auto other = static_cast<std::size_t>(needed);
      for (std::size_t l = 0; l < kLanes; ++l)
        finished_[i].at(l) = std::max(finished_[i].at(l), finished_[other].at(l));
      finished_[i].at(lane_[other]) = std::max(finished_[i].at(lane_[other]), place_[other] + 1);
    }
    lane_end.at(lane) = finished_[i];
    lane_end.at(lane).at(lane) = place_[i] + 1;
  }
}

bool HappensBefore::operator()(std::size_t first, std::size_t second) const {
  return finished_[second].at(lane_[first]) > place_[first];
}

std::string CheckedProgram::text(std::size_t operation) const {
  return place_text(program, operation);
}

void CheckedProgram::require_order(std::size_t first, std::size_t second) const {
  if (!before(first, second)) {
    fail(second, format("may run before {} has finished: that is on lane {}, and no need leads to it",
                        text(first), lane_name(program.operations[first].lane)));
  }
}

int64_t check_one(const StepProgram& program) {
  const CheckedProgram checked{program, HappensBefore(program)};
  const std::vector<Use> uses = check_dataflow(checked);
  check_gathers(checked);
  check_gradients(checked);
  check_offload(checked);
  check_loss(checked);
  return check_buffers(checked, uses);
}

CheckResult check_programs(std::span<const StepProgram> all_ranks) {
  for (std::size_t r = 0; r < all_ranks.size(); ++r) {
    if (all_ranks[r].rank != static_cast<int>(r)) {
      throw ProgramError(all_ranks[r], all_ranks[r].operations.size(),
                         format("it stands at place {} of the list of all ranks", r));
    }
    check_structure(all_ranks[r], all_ranks.size());
  }
  CheckResult result;
  for (const StepProgram& program : all_ranks) result.peak_bytes.push_back(check_one(program));
  check_messages(all_ranks);
  check_collectives(all_ranks);
  check_waits(all_ranks);
  return result;
}

}  // namespace stepforge
