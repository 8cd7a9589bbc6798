// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include "stepforge/config/value.h"

namespace stepforge::testing {
namespace {

std::string repeated(const std::string& part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

TEST(TomlReader, KeepsTheOrderAndPositionsOfTheText) {
  const ConfigValue root = parse_toml("b = 1\n[z]\n  y = true\n  x = [1.5, \"s\"]\n");
  ASSERT_EQ(root.table.size(), 2U);
  EXPECT_EQ(root.table[0].key, "b");
  const ConfigValue* z = root.find("z");
  ASSERT_NE(z, nullptr);
  ASSERT_EQ(z->table.size(), 2U);
  EXPECT_EQ(z->table[0].key, "y");
  EXPECT_EQ(z->table[0].position.line, 3);
  EXPECT_EQ(z->table[0].position.column, 3);
  EXPECT_EQ(z->table[0].value.position.column, 7);
  const ConfigValue& x = z->table[1].value;
  ASSERT_EQ(x.kind, ConfigValue::Kind::list);
  EXPECT_EQ(x.list[0].number, 1.5);
  EXPECT_EQ(x.list[1].text, "s");
  EXPECT_EQ(root.find("a"), nullptr);
}

TEST(TomlReader, RefusesKeysWithTooManyParts) {
  EXPECT_NO_THROW(parse_toml("a" + repeated(".a", 31) + " = 1\n"));
  for (const std::string& key :
       {"a" + repeated(".a", 32), "a" + repeated(" . \"a.b\"", 32), "a" + repeated(".'a'", 2000000)}) {
    try {
      parse_toml("b = \"x\" # c\n" + key + " = 1\n");
      FAIL();
    } catch (const TomlError& error) {
      EXPECT_EQ(std::string(error.what()), "a key of more than 32 parts");
      EXPECT_EQ(error.position().line, 2);
    }
  }
}

TEST(TomlReader, IgnoresDotsInStringsAndComments) {
  const std::string dots(100, '.');
  EXPECT_EQ(parse_toml("a = \"" + dots + "\\\"" + dots + "\" # " + dots + "\n").find("a")->text,
            dots + "\"" + dots);
  EXPECT_EQ(parse_toml("a = '" + dots + "'\nb = \"\"\"" + dots + "\n\"" + dots + "\"\"\"\n").find("a")->text,
            dots);
  EXPECT_EQ(parse_toml("a = [" + repeated("1.0, ", 100) + "]\n").find("a")->list.size(), 100U);
}

TEST(TomlReader, RefusesDeeplyNestedBrackets) {
  EXPECT_THROW(parse_toml("a = " + std::string(1000000, '[')), TomlError);
  EXPECT_THROW(parse_toml("a = " + repeated("{a=", 1000000)), TomlError);
}

}  // namespace
}  // namespace stepforge::testing
