// SPDX-License-Identifier: Apache-2.0
// A small shared table of texts, through which ranks find each other and report failures; no training data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/error.h"

namespace stepforge {

/// One connection to the table. Any thread may use it, but a wait blocks other calls, so long waits need a
/// connection of their own. Every call throws Error once the table cannot be reached.
class KeyStore {
 public:
  KeyStore() = default;
  virtual ~KeyStore() = default;
  KeyStore(const KeyStore&) = delete;
  KeyStore& operator=(const KeyStore&) = delete;

  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The same value for all keys, in one message where the store can.
  virtual void set_all(const std::vector<std::string>& keys, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  /// The value of a key that exists.
  virtual std::string get(const std::string& key) = 0;
  /// The value as soon as the key exists; nullopt if it does not after `seconds`.
  virtual std::optional<std::string> wait(const std::string& key, double seconds) = 0;
  /// Adds to a number that starts at 0; returns the sum.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;

  virtual std::unique_ptr<KeyStore> another_connection() = 0;
};

/// Runs `calls` to a table; false if it cannot be reached any more.
template <typename Calls>
bool reached(const Calls& calls) {
  try {
    calls();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace stepforge
