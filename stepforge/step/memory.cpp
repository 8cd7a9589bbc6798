#include "stepforge/step/memory.h"

namespace stepforge {

int64_t MemoryAccount::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& [kind, bytes] : persistent) sum += bytes;
  return sum;
}

MemoryAccount account(const StepProgram& program) {
  MemoryAccount result;
  for (const Buffer& buffer : program.buffers)
    if (buffer.kind == BufferKind::host)
      result.host_bytes += buffer.bytes;
    else if (buffer.persistent)
      result.persistent[buffer.kind] += buffer.bytes;
  const auto buffer_at = [&](int index) -> const Buffer& {
    return program.buffers[static_cast<std::size_t>(index)];
  };
  std::map<BufferKind, int64_t> live = result.persistent;
  int64_t live_bytes = result.persistent_bytes();
  result.peak_bytes = live_bytes;
  result.at_peak = live;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    for (const int buffer : operation.allocates) {
      live[buffer_at(buffer).kind] += buffer_at(buffer).bytes;
      live_bytes += buffer_at(buffer).bytes;
    }
    if (live_bytes + operation.workspace > result.peak_bytes) {
      result.peak_bytes = live_bytes + operation.workspace;
      result.peak_operation = i;
      result.workspace_at_peak = operation.workspace;
      result.at_peak = live;
    }
    for (const int buffer : operation.frees) {
      live[buffer_at(buffer).kind] -= buffer_at(buffer).bytes;
      live_bytes -= buffer_at(buffer).bytes;
    }
    result.live_after.push_back(live_bytes);
  }
  return result;
}

}  // namespace stepforge
