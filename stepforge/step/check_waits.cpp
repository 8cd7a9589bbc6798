// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <map>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

constexpr std::size_t kReportedRanks = 8;

/// One collective of a group: it finishes when all ranks of the group have arrived.
struct Collective {
  std::size_t arrived = 0;
  std::vector<int> ranks;
};

/// One message: it passes when sender and receiver have both come, as in engines without buffers.
struct Message {
  bool sender = false;
  bool receiver = false;
};

struct RankState {
  std::array<std::vector<std::size_t>, kLanes> queue;  // the operations of each lane, in order
  std::array<std::size_t, kLanes> next{};
  std::vector<bool> done;
  std::vector<std::size_t> joined;  // the number of its collectives each operation has joined
  std::vector<std::vector<Collective*>> collectives;  // of each operation, one after the other
  std::vector<Message*> message;                      // of each send and receive
};

/// Runs the lanes of all ranks as far as possible, without time: an operation that can finish does so at
/// once.
class Waits {
 public:
  explicit Waits(std::span<const StepProgram> all_ranks) : all_ranks_(all_ranks), ranks_(all_ranks.size()) {
    for (const StepProgram& program : all_ranks) prepare(program);
  }

  void check() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) ready_.push_back(r);
    while (!ready_.empty()) {
      const std::size_t r = ready_.front();
      ready_.pop_front();
      advance(r);
    }
    report_stuck();
  }

 private:
  void prepare(const StepProgram& program) {
    RankState& state = element(ranks_, program.rank);
    const std::size_t count = program.operations.size();
    state.done.resize(count, false);
    state.joined.resize(count, 0);
    state.collectives.resize(count);
    state.message.resize(count, nullptr);
    std::map<std::string, std::size_t> counts;            // of the collectives of each group
    std::map<std::pair<int, int>, std::size_t> messages;  // of each channel
    for (std::size_t i = 0; i < count; ++i) {
      const Operation& operation = program.operations[i];
      state.queue.at(static_cast<std::size_t>(operation.lane)).push_back(i);
      for (const GroupExchange& exchange : collectives_of(operation)) {
        const RankGroup& group = element(program.groups, exchange.group);
        const std::string key = group_key(group);
        Collective& collective = collectives_[{key, counts[key]++}];
        collective.ranks = group.ranks;
        state.collectives[i].push_back(&collective);
      }
      if (!has_trait(operation.kind, kHasPeer)) continue;
      const bool sends = sends_message(operation.kind);
      const std::pair channel{sends ? program.rank : operation.peer, sends ? operation.peer : program.rank};
      state.message[i] = &messages_[{channel, messages[channel]++}];
    }
  }

  void advance(std::size_t r) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        RankState& state = ranks_[r];
        while (state.next.at(lane) < state.queue.at(lane).size() &&
               finish(r, state.queue.at(lane)[state.next.at(lane)])) {
          ++state.next.at(lane);
          moved = true;
        }
      }
    }
  }

  /// Whether the operation, next on its lane, can finish now.
  bool finish(std::size_t r, std::size_t i) {
    RankState& state = ranks_[r];
    const Operation& operation = all_ranks_[r].operations[i];
    for (const int needed : operation.needs)
      if (!element(state.done, needed)) return false;
    if (!meet(state, i)) return false;
    if (state.message[i] != nullptr && !pass(operation, *state.message[i])) return false;
    state.done[i] = true;
    return true;
  }

  /// Whether the message passes: both ends have come.
  bool pass(const Operation& operation, Message& message) {
    bool& own = sends_message(operation.kind) ? message.sender : message.receiver;
    if (!std::exchange(own, true)) ready_.push_back(static_cast<std::size_t>(operation.peer));
    return message.sender && message.receiver;
  }

  /// Joins the collectives of the operation as far as the others have come.
  bool meet(RankState& state, std::size_t i) {
    const auto& collectives = state.collectives[i];
    for (std::size_t k = 0; k < collectives.size(); ++k) {
      Collective& collective = *collectives[k];
      if (state.joined[i] == k) {
        ++state.joined[i];
        if (++collective.arrived == collective.ranks.size())
          for (const int rank : collective.ranks) ready_.push_back(static_cast<std::size_t>(rank));
      }
      if (collective.arrived < collective.ranks.size()) return false;
    }
    return true;
  }

  /// Whether a rank has joined the collective.
  static bool has_joined(const RankState& state, const Collective* collective) {
    for (std::size_t i = 0; i < state.collectives.size(); ++i) {
      const auto& collectives = state.collectives[i];
      for (std::size_t k = 0; k < state.joined[i]; ++k)
        if (collectives[k] == collective) return true;
    }
    return false;
  }

  /// What the operation at the head of a lane waits for; "" if that is another lane of its own rank.
  std::string partner_text(std::size_t r, std::size_t i) const {
    const Operation& operation = all_ranks_[r].operations[i];
    for (const int needed : operation.needs)
      if (!element(ranks_[r].done, needed)) return {};
    if (receives_message(operation.kind)) return format("waits for rank {} to send", operation.peer);
    if (sends_message(operation.kind)) return format("waits for rank {} to receive", operation.peer);
    if (ranks_[r].joined[i] == 0) return {};
    const Collective* collective = ranks_[r].collectives[i][ranks_[r].joined[i] - 1];
    std::vector<std::string> missing;
    for (const int rank : collective->ranks)
      if (!has_joined(element(ranks_, rank), collective)) missing.push_back(format("{}", rank));
    return format("waits for rank {} to join", join(missing, ", "));
  }

  void report_stuck() const {
    std::vector<std::string> waits;
    std::size_t first_rank = ranks_.size();
    std::size_t first_operation = 0;
    for (std::size_t r = 0; r < ranks_.size() && waits.size() < kReportedRanks; ++r) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const RankState& state = ranks_[r];
        if (state.next.at(lane) == state.queue.at(lane).size()) continue;
        const std::size_t i = state.queue.at(lane)[state.next.at(lane)];
        const std::string partner = partner_text(r, i);
        if (partner.empty()) continue;
        if (first_rank == ranks_.size()) {
          first_rank = r;
          first_operation = i;
        }
        waits.push_back(format("rank {} at operation {} ({}) {}", r, i,
                               operation_text(all_ranks_[r], all_ranks_[r].operations[i]), partner));
      }
    }
    if (first_rank < ranks_.size())
      throw ProgramError(all_ranks_[first_rank], first_operation, "a cycle of waits: " + join(waits, "; "));
  }

  std::span<const StepProgram> all_ranks_;
  std::vector<RankState> ranks_;
  std::map<std::pair<std::string, std::size_t>, Collective> collectives_;
  std::map<std::pair<std::pair<int, int>, std::size_t>, Message>
      messages_;  // of (sender, receiver), by number
  std::deque<std::size_t> ready_;
};

}  // namespace

void check_waits(std::span<const StepProgram> all_ranks) {
  Waits(all_ranks).check();
}

}  // namespace stepforge
