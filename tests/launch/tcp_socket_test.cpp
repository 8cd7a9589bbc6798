// SPDX-License-Identifier: Apache-2.0
#include "stepforge/launch/tcp_socket.h"

#include <gtest/gtest.h>

#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

TEST(SourceAddress, IsTheLocalAddressOfTheRoute) {
  std::string failure;
  EXPECT_EQ(source_address({"127.0.0.1", 80}, failure), "127.0.0.1");
  EXPECT_EQ(failure, "");
  EXPECT_EQ(source_address({"no such host", 80}, failure), "");
  EXPECT_CONTAINS(failure, "no such host");
}

TEST(TcpAddress, WritesIpv6InBrackets) {
  EXPECT_EQ(parse_tcp_address("[::1]:80", "").host, "::1");
  EXPECT_EQ(parse_tcp_address("[::1]:80", "").text(), "[::1]:80");
}

TEST(Loopback, IncludesAllOf127AndIpv6) {
  for (const char* own : {"127.0.0.1", "127.0.1.1", "::1"}) EXPECT_TRUE(is_loopback(own)) << own;
  for (const char* other : {"10.0.0.127", "128.0.0.1", "fd00::1", "::"})
    EXPECT_FALSE(is_loopback(other)) << other;
}

}  // namespace
}  // namespace stepforge::testing
