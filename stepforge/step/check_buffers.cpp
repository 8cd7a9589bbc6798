// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Buffers : RuleWalk {
 public:
  explicit Buffers(const CheckedProgram& checked) : RuleWalk(checked), lives_(program_.buffers.size()) {}

  void check(const std::vector<Use>& uses) {
    auto next_use = uses.begin();
    walk([&](const Operation& operation) {
      for (const int buffer : operation.allocates) allocate(buffer);
      for (const int buffer : operation.reads) read(buffer);
      for (; next_use != uses.end() && next_use->consumer == here(); ++next_use) read_made_by(*next_use);
      for (const int buffer : operation.frees) free(buffer);
    });
    check_end();
  }

 private:
  struct Life {
    int allocated = kNever;
    int freed = kNever;
    std::vector<int> readers;
  };

  void allocate(int buffer) {
    const Buffer& info = element(program_.buffers, buffer);
    Life& life = element(lives_, buffer);
    if (info.persistent) fail(format("buffer {} is persistent: no operation allocates it", info.name));
    if (life.allocated != kNever)
      fail(format("buffer {} was already allocated by {}", info.name, text(life.allocated)));
    life.allocated = here();
  }

  void require_live(int buffer) const {
    const Life& life = element(lives_, buffer);
    const Buffer& info = element(program_.buffers, buffer);
    if (life.freed != kNever) fail(format("buffer {} was freed by {}", info.name, text(life.freed)));
    if (life.allocated == kNever) fail(format("buffer {} is not allocated", info.name));
    require_order(life.allocated);
  }

  void read(int buffer) {
    if (element(program_.buffers, buffer).persistent) return;
    require_live(buffer);
    element(lives_, buffer).readers.push_back(here());
  }

  /// The buffer that the producer has filled must be live, even if the operation does not list it.
  void read_made_by(const Use& use) {
    const int buffer = find_buffer(program_, element(program_.operations, use.producer).allocates, use.kind);
    if (buffer >= 0) read(buffer);
  }

  void free(int buffer) {
    const Buffer& info = element(program_.buffers, buffer);
    Life& life = element(lives_, buffer);
    if (info.persistent) fail(format("buffer {} is persistent: no operation frees it", info.name));
    if (life.freed != kNever) fail(format("buffer {} was already freed by {}", info.name, text(life.freed)));
    require_live(buffer);
    for (const int reader : life.readers) require_order(reader);
    life.freed = here();
  }

  void check_end() const {
    for (std::size_t b = 0; b < lives_.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.persistent) continue;
      if (lives_[b].allocated == kNever) fail(format("buffer {} is never allocated", buffer.name));
      if (lives_[b].freed == kNever)
        fail_at(lives_[b].allocated, format("buffer {} leaks: no operation frees it", buffer.name));
    }
  }

  std::vector<Life> lives_;
};

}  // namespace

void check_buffers(const CheckedProgram& checked, const std::vector<Use>& uses) {
  Buffers(checked).check(uses);
}

}  // namespace stepforge
