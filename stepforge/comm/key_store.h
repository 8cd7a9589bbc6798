// SPDX-License-Identifier: Apache-2.0
// The key-value store through which ranks find each other and report failures. It carries no training data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/error.h"

namespace stepforge {

/// One connection to the store. Any thread may use it, but a wait blocks other calls, so long waits need a
/// connection of their own. Every call throws Error if the store is not reachable.
class KeyStore {
 public:
  KeyStore() = default;
  virtual ~KeyStore() = default;
  KeyStore(const KeyStore&) = delete;
  KeyStore& operator=(const KeyStore&) = delete;

  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Sets all keys to the same value, in one message if the store supports that.
  virtual void set_all(const std::vector<std::string>& keys, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  /// The value of a key that exists.
  virtual std::string get(const std::string& key) = 0;
  /// Waits until the key exists and returns its value; nullopt after `seconds`.
  virtual std::optional<std::string> wait(const std::string& key, double seconds) = 0;
  /// Adds to a counter that starts at 0; returns the sum.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;

  virtual std::unique_ptr<KeyStore> another_connection() = 0;
};

/// Runs calls to a store; false if it is not reachable.
template <typename Calls>
bool try_store(const Calls& calls) {
  try {
    calls();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace stepforge
