#include "engines/c10d_store.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include "base/format.h"
#include "comm/communicator.h"

namespace stepforge {

namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(std::min(seconds, 1e9) * 1000)));
}

/// libtorch appends its call stack to what went wrong.
std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

/// What `call` returns; Error instead of c10d's exceptions.
template <typename Call>
auto reached(const Call& call) {
  try {
    return call();
  } catch (const std::exception& failure) {
    throw Error(format("the store through which ranks find each other: {}", first_line(failure.what())));
  }
}

/// c10d logs each lost connection with a call stack; what matters of that is in our messages.
void quiet_c10d() {
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
  c10::initLogging();
}

class Store : public C10dStore {
 public:
  explicit Store(c10::intrusive_ptr<c10d::Store> inner) : inner_(std::move(inner)) {}

  c10d::Store& store() const override { return *inner_; }
  std::unique_ptr<C10dStore> share() const override { return std::make_unique<Store>(inner_); }

  void set(const std::string& key, const std::string& value) override {
    reached([&] { inner_->set(key, value); });
  }
  void set_all(const std::vector<std::string>& keys, const std::string& value) override {
    const std::vector<uint8_t> bytes(value.begin(), value.end());
    const std::vector<std::vector<uint8_t>> values(keys.size(), bytes);
    reached([&] {
      if (inner_->hasExtendedApi()) return inner_->multiSet(keys, values);
      for (const std::string& key : keys) inner_->set(key, bytes);
    });
  }
  bool has(const std::string& key) override {
    return reached([&] { return inner_->check({key}); });
  }
  std::string get(const std::string& key) override {
    return reached([&] { return inner_->get_to_str(key); });
  }
  std::optional<std::string> wait(const std::string& key, double seconds) override {
    return reached([&]() -> std::optional<std::string> {
      try {
        inner_->wait({key}, milliseconds(seconds));
      } catch (const c10::DistStoreError&) {
        if (inner_->check({key})) return inner_->get_to_str(key);
        return std::nullopt;
      }
      return inner_->get_to_str(key);
    });
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return reached([&] { return inner_->add(key, amount); });
  }
  std::unique_ptr<KeyStore> another_connection() override {
    return reached([&]() -> std::unique_ptr<KeyStore> { return std::make_unique<Store>(inner_->clone()); });
  }

 private:
  c10::intrusive_ptr<c10d::Store> inner_;
};

}  // namespace

std::unique_ptr<C10dStore> tcp_store(const StoreAddress& address, bool is_server, double seconds,
                                     std::optional<int> listener) {
  quiet_c10d();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = milliseconds(seconds);
  options.masterListenFd = listener;
  try {
    return std::make_unique<Store>(c10::make_intrusive<c10d::TCPStore>(address.host, options));
  } catch (const std::exception& failure) {
    const std::string reason = first_line(failure.what());
    if (reason.find("EADDRINUSE") != std::string::npos ||
        reason.find("address already in use") != std::string::npos) {
      throw UsageError(
          format("port {} is in use on this host: set MASTER_PORT to another one on all ranks ({})",
                 address.port, reason));
    }
    throw PeerError(format("rank 0 did not answer at {}:{} within {} s: {}", address.host, address.port,
                           seconds, reason));
  }
}

std::unique_ptr<C10dStore> memory_store() {
  return std::make_unique<Store>(c10::make_intrusive<c10d::HashStore>());
}

}  // namespace stepforge
