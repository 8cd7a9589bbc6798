// SPDX-License-Identifier: Apache-2.0
#include "stepforge/sim/memory_map.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <execinfo.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge::sim {

namespace {

int protection(HostRights rights) {
  switch (rights) {
    case HostRights::none:
      return PROT_NONE;
    case HostRights::read:
      return PROT_READ;
    case HostRights::read_and_write:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

std::byte* map(int file, int64_t bytes, int rights) {
  void* address = mmap(nullptr, static_cast<size_t>(bytes), rights, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (address == MAP_FAILED)
    throw Error(format("the simulated device cannot map {} bytes: {}", bytes, std::strerror(errno)));
  return static_cast<std::byte*>(address);
}

}  // namespace

MemoryMap::MemoryMap(int64_t bytes, HostRights rights) : bytes_(bytes) {
  const int file = memfd_create("stepforge_sim", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, bytes) != 0)
    throw Error(format("the simulated device cannot reserve {} bytes: {}", bytes, std::strerror(errno)));
  host_ = map(file, bytes, protection(rights));
  streams_ = map(file, bytes, PROT_READ | PROT_WRITE);
  close(file);
}

MemoryMap::~MemoryMap() {
  munmap(host_, static_cast<size_t>(bytes_));
  munmap(streams_, static_cast<size_t>(bytes_));
}

bool MemoryMap::contains(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  return byte >= host_ && byte < host_ + bytes_;
}

void MemoryMap::allow(Range pages, HostRights rights) const {
  if (mprotect(host_ + offset(pages.begin), static_cast<size_t>(pages.bytes), protection(rights)) != 0)
    throw Error(
        format("the simulated device cannot protect {} bytes: {}", pages.bytes, std::strerror(errno)));
}

namespace {

struct Watched {
  const MemoryMap* device = nullptr;
  const MemoryMap* pinned = nullptr;
  struct sigaction earlier = {};
  std::atomic<bool> report = false;
  std::atomic<const void*> touched = nullptr;
};

/// A signal handler has no other way to its data.
Watched& watched() {
  static Watched watched;
  return watched;
}

/// Uses only functions that are safe in a signal handler, except for the stack.
void on_fault(int signal, siginfo_t* information, void*) {
  Watched& maps = watched();
  const bool device = maps.device->contains(information->si_addr);
  if (!device && !maps.pinned->contains(information->si_addr)) {
    sigaction(signal, &maps.earlier, nullptr);  // the fault happens again, for the earlier handler
    return;
  }
  if (maps.report) {
    maps.touched = information->si_addr;
    auto* const byte = static_cast<std::byte*>(information->si_addr);
    std::byte* const page = byte - reinterpret_cast<uintptr_t>(byte) % kPage;
    mprotect(page, kPage, PROT_READ | PROT_WRITE);
    return;
  }
  std::array<char, 128> message{};
  const int length = std::snprintf(
      message.data(), message.size(), "the host touched %s at offset %lld\n",
      device ? "device memory" : "pinned memory that a stream still uses",
      static_cast<long long>((device ? maps.device : maps.pinned)->offset(information->si_addr)));
  if (write(STDERR_FILENO, message.data(), static_cast<size_t>(length)) < 0) _exit(kTouchedDeviceMemory);
  std::array<void*, 40> stack{};
  backtrace_symbols_fd(stack.data(), backtrace(stack.data(), static_cast<int>(stack.size())), STDERR_FILENO);
  _exit(kTouchedDeviceMemory);
}

}  // namespace

void catch_host_accesses(const MemoryMap& device, const MemoryMap& pinned) {
  watched().device = &device;
  watched().pinned = &pinned;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &watched().earlier);
}

void report_host_accesses(bool report) {
  watched().report = report;
}

std::string host_access() {
  const Watched& maps = watched();
  const void* touched = watched().touched.exchange(nullptr);
  if (touched == nullptr) return "";
  const bool device = maps.device->contains(touched);
  return format("the host touched {} at offset {}",
                device ? "device memory" : "pinned memory that a stream still uses",
                (device ? maps.device : maps.pinned)->offset(touched));
}

}  // namespace stepforge::sim
