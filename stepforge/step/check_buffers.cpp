#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/step/check_rules.h"

namespace stepforge {

namespace {

class Buffers {
 public:
  explicit Buffers(const CheckedProgram& checked)
      : checked_(checked), program_(checked.program), lives_(program_.buffers.size()) {}

  int64_t check(const std::vector<Use>& uses) {
    int64_t live = 0;
    for (const Buffer& buffer : program_.buffers)
      live += buffer.persistent && buffer.kind != BufferKind::host ? buffer.bytes : 0;
    int64_t peak = live;
    std::size_t next_use = 0;  // uses are ordered by consumer
    for (at_ = 0; at_ < program_.operations.size(); ++at_) {
      const Operation& operation = program_.operations[at_];
      for (const int buffer : operation.allocates) {
        allocate(buffer);
        live += bytes(buffer);
      }
      for (const int buffer : operation.reads) read(buffer);
      for (; next_use < uses.size() && uses[next_use].consumer == at_; ++next_use)
        read_made_by(uses[next_use]);
      peak = std::max(peak, live + operation.workspace);
      for (const int buffer : operation.frees) {
        free(buffer);
        live -= bytes(buffer);
      }
    }
    check_end();
    return peak;
  }

 private:
  struct Life {
    int allocated = -1;
    int freed = -1;
    std::vector<std::size_t> readers;
  };

  [[noreturn]] void fail(const std::string& reason) const { checked_.fail(at_, reason); }
  const Buffer& info(int buffer) const { return program_.buffers[static_cast<std::size_t>(buffer)]; }
  int64_t bytes(int buffer) const { return info(buffer).bytes; }
  Life& life(int buffer) { return lives_[static_cast<std::size_t>(buffer)]; }
  std::string text(int operation) const { return checked_.text(static_cast<std::size_t>(operation)); }

  void allocate(int buffer) {
    if (info(buffer).persistent)
      fail(format("buffer {} is persistent: no operation allocates it", info(buffer).name));
    if (life(buffer).allocated >= 0)
      fail(format("buffer {} was already allocated by {}", info(buffer).name, text(life(buffer).allocated)));
    life(buffer).allocated = static_cast<int>(at_);
  }

  void require_live(int buffer) {
    const Life& at = life(buffer);
    if (at.allocated < 0) fail(format("buffer {} is not allocated", info(buffer).name));
    if (at.freed >= 0) fail(format("buffer {} was freed by {}", info(buffer).name, text(at.freed)));
  }

  void read(int buffer) {
    if (info(buffer).persistent) return;
    require_live(buffer);
    const auto allocated = static_cast<std::size_t>(life(buffer).allocated);
    if (allocated != at_) checked_.require_order(allocated, at_);
    life(buffer).readers.push_back(at_);
  }

  /// What a value's producer allocated for it must still be there, whether or not the operation lists it as
  /// read.
  void read_made_by(const Use& use) {
    const int buffer = find_buffer(program_, program_.operations[use.producer].allocates, use.kind);
    if (buffer >= 0) read(buffer);
  }

  void free(int buffer) {
    if (info(buffer).persistent)
      fail(format("buffer {} is persistent: no operation frees it", info(buffer).name));
    if (life(buffer).freed >= 0)
      fail(format("buffer {} was already freed by {}", info(buffer).name, text(life(buffer).freed)));
    require_live(buffer);
    const auto allocated = static_cast<std::size_t>(life(buffer).allocated);
    if (allocated != at_) checked_.require_order(allocated, at_);
    for (const std::size_t reader : life(buffer).readers)
      if (reader != at_) checked_.require_order(reader, at_);
    life(buffer).freed = static_cast<int>(at_);
  }

  void check_end() {
    for (std::size_t b = 0; b < lives_.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.persistent) continue;
      if (lives_[b].allocated < 0) fail(format("buffer {} is never allocated", buffer.name));
      if (lives_[b].freed < 0) {
        checked_.fail(static_cast<std::size_t>(lives_[b].allocated),
                      format("buffer {} leaks: no operation frees it", buffer.name));
      }
    }
  }

  const CheckedProgram& checked_;
  const StepProgram& program_;
  std::vector<Life> lives_;
  std::size_t at_ = 0;
};

}  // namespace

int64_t check_buffers(const CheckedProgram& checked, const std::vector<Use>& uses) {
  return Buffers(checked).check(uses);
}

}  // namespace stepforge
