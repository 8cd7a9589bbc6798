// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/cache_dir.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

/// Sets a variable (nullptr: removes it) while the object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* now = std::getenv(name)) before_ = now;
    set(value);
  }
  ~Variable() { set(before_.empty() ? nullptr : before_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, 1); }
  const char* name_;
  std::string before_;
};

TEST(CacheDir, FollowsTheXdgRules) {
  const Variable home("HOME", "/h/x");
  {
    const Variable xdg("XDG_CACHE_HOME", "/tmp/cache");
    EXPECT_EQ(cache_dir(), "/tmp/cache/stepforge");
  }
  for (const char* ignored : {static_cast<const char*>(nullptr), "", "relative/cache"}) {
    const Variable xdg("XDG_CACHE_HOME", ignored);
    EXPECT_EQ(cache_dir(), "/h/x/.cache/stepforge");
  }
}

}  // namespace
}  // namespace stepforge::testing
