// SPDX-License-Identifier: Apache-2.0
#include "stepforge/engines/gloo_links.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/engines/c10d_text.h"

namespace stepforge {

namespace {

using Gloo = c10d::ProcessGroupGloo;
using Clock = std::chrono::steady_clock;

class GlooMessage : public PendingMessage {
 public:
  explicit GlooMessage(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  WaitResult wait(double seconds) override {
    const Clock::time_point start = Clock::now();
    try {
      return work_->wait(milliseconds(seconds)) ? WaitResult::done : WaitResult::interrupted;
    } catch (const std::exception&) {
      // Gloo throws the same exception for a deadline and a lost connection.
      const bool is_late = Clock::now() - start >= milliseconds(seconds);
      return is_late ? WaitResult::timed_out : WaitResult::closed;
    }
  }
  void interrupt() override { work_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

/// A message that could not be started because its connection is closed.
class LostMessage : public PendingMessage {
 public:
  WaitResult wait(double) override { return WaitResult::closed; }
  void interrupt() override {}
};

class GlooLinks : public MessageLinks {
 public:
  explicit GlooLinks(c10::intrusive_ptr<Gloo> group) : group_(std::move(group)) {}

  std::unique_ptr<PendingMessage> send(std::span<const std::byte> bytes, int member,
                                       Channel channel) override {
    // Gloo does not write to what it sends.
    return start({const_cast<std::byte*>(bytes.data()), bytes.size()}, [&](std::vector<at::Tensor>& tensors) {
      return group_->send(tensors, member, static_cast<int>(channel));
    });
  }
  std::unique_ptr<PendingMessage> receive(std::span<std::byte> bytes, int member, Channel channel) override {
    return start(bytes, [&](std::vector<at::Tensor>& tensors) {
      return group_->recv(tensors, member, static_cast<int>(channel));
    });
  }

 private:
  template <typename Start>
  static std::unique_ptr<PendingMessage> start(std::span<std::byte> bytes, const Start& begin) {
    std::vector<at::Tensor> tensors = {
        at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte)};
    try {
      return std::make_unique<GlooMessage>(begin(tensors));
    } catch (const std::exception&) {
      return std::make_unique<LostMessage>();
    }
  }

  c10::intrusive_ptr<Gloo> group_;
};

}  // namespace

LinksFactory gloo_links(const C10dStore& store, const GlooAddress& address, double init_seconds) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  std::signal(SIGPIPE, SIG_IGN);  // Gloo may write to connections that a terminated rank has closed
  auto options = Gloo::Options::create(milliseconds(init_seconds));
  options->threads = 1;  // for c10d's own collectives, which are not used
  try {
    options->devices.push_back(address.interface.empty() ? Gloo::createDeviceForHostname(address.address)
                                                         : Gloo::createDeviceForInterface(address.interface));
  } catch (const std::exception& failure) {
    throw UsageError(format("cannot open connections at {}: {}",
                            address.interface.empty() ? address.address : "interface " + address.interface,
                            first_line(failure.what())));
  }
  // A separate connection: waiting for other ranks blocks it, and failures are reported over `store`'s own.
  c10::intrusive_ptr<c10d::Store> connection = store.store().clone();
  return
      [options, connection](const std::string& key, int member, int size) -> std::unique_ptr<MessageLinks> {
        try {
          auto names = c10::make_intrusive<c10d::PrefixStore>(key + "/gloo", connection);
          return std::make_unique<GlooLinks>(c10::make_intrusive<Gloo>(names, member, size, options));
        } catch (const std::exception& failure) {
          throw Error(format("no connection to all members: {}", first_line(failure.what())));
        }
      };
}

}  // namespace stepforge
