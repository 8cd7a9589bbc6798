// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/registry.h"

#include <gtest/gtest.h>

#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

struct Colour {
  static constexpr std::string_view kKind = "colour";
  std::string name;
  int value = 0;
};

TEST(Registry, KeepsItemsOfAKindInOrder) {
  Registry registry;
  registry.add(Colour{"red", 1});
  const Colour* red = registry.find<Colour>("red");
  for (int i = 0; i < 1000; ++i) registry.add(Colour{"shade" + std::to_string(i), i});
  EXPECT_EQ(registry.find<Colour>("red"), red) << "references stay valid";
  EXPECT_EQ(red->value, 1);
  EXPECT_EQ(registry.all<Colour>().size(), 1001U);
  EXPECT_EQ(registry.names("colour").back(), "shade999");
  EXPECT_EQ(registry.find<Colour>("blue"), nullptr);
  EXPECT_TRUE(registry.all<SubCommand>().empty());
}

TEST(Registry, RefusesASecondItemOfAName) {
  Registry registry;
  registry.add(Colour{"red", 1});
  registry.add(SubCommand{.name = "red", .summary = "", .run = nullptr});
  EXPECT_CONTAINS(message_of<UsageError>([&] {
                    registry.add_plugin("/x/paint.so", [](Registry& all) { all.add(Colour{"red", 2}); });
                  }),
                  "/x/paint.so registers the colour \"red\"");
  EXPECT_CONTAINS(message_of<UsageError>([&] { registry.add(Colour{}); }), "a colour without a name");
}

}  // namespace
}  // namespace stepforge::testing
