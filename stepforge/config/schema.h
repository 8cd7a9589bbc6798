// SPDX-License-Identifier: Apache-2.0
// The typed schema: the fields of each configuration struct with their type, unit, range and description.
// Parsing, validation, help, documentation and printing all walk over it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "stepforge/config/config.h"

namespace stepforge {

class TableSchema;

/// What happens on resume when a value differs from the checkpoint's.
struct OnResume {
  bool reported = true;
  std::optional<Guard> guard = {};  ///< Refused unless checkpoint.allow_changed names it.
};
inline constexpr OnResume kUnreported{.reported = false};
constexpr OnResume guarded(Guard guard) {
  return {.guard = guard};
}

/// What a field accepts, in addition to its type. For a list: what each element must be.
struct FieldRules {
  std::string_view unit = {};        ///< The unit of a number: "tokens", "steps".
  std::optional<double> min = {};    ///< Smallest accepted number.
  std::optional<double> max = {};    ///< Largest accepted number.
  std::optional<double> above = {};  ///< Numbers must be above this.
  std::optional<double> below = {};  ///< Numbers must be below this.
  std::optional<double> special =
      {};  ///< One accepted number outside the range; the description explains it.
  /// The accepted strings. If empty: any string, or all names of the field's enum.
  std::vector<std::string_view> choices = {};
  std::string_view open_to = {};  ///< The kind of item whose registered names are accepted too.
  bool non_empty = false;         ///< Empty strings are refused.
};

/// An enum or a list of enums, without the enum's type.
struct ChoiceSlot {
  void* value;
  std::vector<std::string_view> (*names)(const void* value);  ///< One name if `value` is not a list.
  void (*set)(void* value, std::span<const std::string> names);
};

/// A nested struct.
struct TableSlot {
  void* object;
};

/// A std::vector of structs, without the element type.
struct TableListSlot {
  void* list;
  size_t (*size)(void* list);
  void* (*at)(void* list, size_t index);
  void (*resize)(void* list, size_t count);
};

/// Points to a field's value in one object.
using FieldSlot =
    std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*, std::vector<double>*,
                 std::vector<std::string>*, ChoiceSlot, TableSlot, TableListSlot>;

enum class FieldType {
  boolean,
  integer,
  number,
  text,
  integers,
  numbers,
  texts,
  choice,
  choices,
  table,
  tables
};

/// Whether the field is a TOML array of numbers or strings.
inline bool is_list(FieldType type) {
  return type == FieldType::integers || type == FieldType::numbers || type == FieldType::texts ||
         type == FieldType::choices;
}

struct Field {
  std::string name;
  FieldType type = FieldType::text;
  std::string_view doc = {};  ///< One sentence.
  FieldRules rules = {};
  std::optional<OnResume> on_resume = {};  ///< Empty: inherited from the enclosing table.
  /// For the types table and tables: the schema of the struct or of the list's elements.
  std::shared_ptr<const TableSchema> table = {};
  /// Finds the field in `owner`, an object of the struct that the schema describes.
  std::function<FieldSlot(void* owner)> slot = {};
  /// For the type tables: the elements have the fields of the enclosing list, so documentation need not repeat them.
  bool is_recursive = false;
};

/// The fields of one struct, in the order in which they are printed.
class TableSchema {
 public:
  const std::vector<Field>& fields() const { return fields_; }
  std::vector<Field>& fields() { return fields_; }
  /// Returns nullptr if the field does not exist.
  const Field* find(std::string_view name) const;
  std::vector<std::string> names() const;
  /// A new object of the struct, with the default values.
  std::shared_ptr<void> make_default() const { return make_default_(); }
  void make_defaults_with(std::function<std::shared_ptr<void>()> make_default) {
    make_default_ = std::move(make_default);
  }
  /// A copy of an object of the struct.
  std::shared_ptr<void> copy(const void* object) const { return copy_(object); }

 protected:
  TableSchema(std::function<std::shared_ptr<void>()> make_default,
              std::function<std::shared_ptr<void>(const void*)> copy)
      : make_default_(std::move(make_default)), copy_(std::move(copy)) {}

  std::vector<Field> fields_;

 private:
  std::function<std::shared_ptr<void>()> make_default_;
  std::function<std::shared_ptr<void>(const void*)> copy_;
};

/// The enum value with this name, which must be one of choice_names.
template <typename Choice>
Choice choice_from_name(std::string_view name) {
  const auto names = choice_names(Choice{});
  return static_cast<Choice>(std::find(names.begin(), names.end(), name) - names.begin());
}

/// Whether `Value` is an enum or a list of enums, and how a ChoiceSlot reads and writes it.
template <typename Value>
struct ChoiceTraits : std::is_enum<Value> {
  using Type = Value;
  static constexpr bool is_list = false;
  static std::vector<std::string_view> names(const void* value) {
    return {choice_name(*static_cast<const Value*>(value))};
  }
  static void set(void* value, std::span<const std::string> names) {
    *static_cast<Value*>(value) = choice_from_name<Value>(names.front());
  }
};

template <typename Choice>
struct ChoiceTraits<std::vector<Choice>> : std::is_enum<Choice> {
  using Type = Choice;
  static constexpr bool is_list = true;
  static std::vector<std::string_view> names(const void* value) {
    std::vector<std::string_view> names;
    for (const Choice choice : *static_cast<const std::vector<Choice>*>(value))
      names.push_back(choice_name(choice));
    return names;
  }
  static void set(void* value, std::span<const std::string> names) {
    auto& list = *static_cast<std::vector<Choice>*>(value);
    list.clear();
    for (const std::string& name : names) list.push_back(choice_from_name<Choice>(name));
  }
};

/// The TableSchema of the struct `Owner`, built field by field. An empty `on_resume` is inherited from the
/// enclosing table.
template <typename Owner>
class SchemaOf : public TableSchema {
 public:
  SchemaOf()
      : TableSchema([]() -> std::shared_ptr<void> { return std::make_shared<Owner>(); },
                    [](const void* object) -> std::shared_ptr<void> {
                      return std::make_shared<Owner>(*static_cast<const Owner*>(object));
                    }) {}

  template <typename Value>
    requires(!ChoiceTraits<Value>::value)
  SchemaOf& field(std::string_view name, Value Owner::* member, std::string_view doc, FieldRules rules = {},
                  std::optional<OnResume> on_resume = {}) {
    return add(name, type_of<Value>(), doc, std::move(rules), on_resume, nullptr,
               [member](void* owner) -> FieldSlot { return &(static_cast<Owner*>(owner)->*member); });
  }

  template <typename Value>
    requires ChoiceTraits<Value>::value
  SchemaOf& field(std::string_view name, Value Owner::* member, std::string_view doc, FieldRules rules = {},
                  std::optional<OnResume> on_resume = {}) {
    using Choice = typename ChoiceTraits<Value>::Type;
    if (rules.choices.empty()) {
      const auto names = choice_names(Choice{});
      rules.choices.assign(names.begin(), names.end());
    }
    const FieldType type = ChoiceTraits<Value>::is_list ? FieldType::choices : FieldType::choice;
    return add(name, type, doc, std::move(rules), on_resume, nullptr, [member](void* owner) -> FieldSlot {
      return ChoiceSlot{&(static_cast<Owner*>(owner)->*member), &ChoiceTraits<Value>::names,
                        &ChoiceTraits<Value>::set};
    });
  }

  /// A nested table.
  template <typename Table>
  SchemaOf& table(std::string_view name, Table Owner::* member, const SchemaOf<Table>& schema,
                  std::string_view doc, std::optional<OnResume> on_resume = {}) {
    return add(
        name, FieldType::table, doc, {}, on_resume, std::make_shared<const TableSchema>(schema),
        [member](void* owner) -> FieldSlot { return TableSlot{&(static_cast<Owner*>(owner)->*member)}; });
  }

  /// A list of tables.
  template <typename Table>
  SchemaOf& tables(std::string_view name, std::vector<Table> Owner::* member, const SchemaOf<Table>& schema,
                   std::string_view doc, std::optional<OnResume> on_resume = {}) {
    using List = std::vector<Table>;
    return add(name, FieldType::tables, doc, {}, on_resume, std::make_shared<const TableSchema>(schema),
               [member](void* owner) -> FieldSlot {
                 return TableListSlot{
                     &(static_cast<Owner*>(owner)->*member),
                     [](void* list) { return static_cast<List*>(list)->size(); },
                     [](void* list, size_t index) -> void* { return &(*static_cast<List*>(list))[index]; },
                     [](void* list, size_t count) { static_cast<List*>(list)->resize(count); }};
               });
  }

  /// A list of tables like the one that it is in.
  SchemaOf& inner_tables(std::string_view name, std::vector<Owner> Owner::* member, const SchemaOf& schema,
                         std::string_view doc) {
    tables(name, member, schema, doc);
    this->fields_.back().is_recursive = true;
    return *this;
  }

 private:
  SchemaOf& add(std::string_view name, FieldType type, std::string_view doc, FieldRules rules,
                std::optional<OnResume> on_resume, std::shared_ptr<const TableSchema> table,
                std::function<FieldSlot(void*)> slot) {
    fields_.push_back(
        {std::string(name), type, doc, std::move(rules), on_resume, std::move(table), std::move(slot)});
    return *this;
  }

  template <typename Value>
  static constexpr FieldType type_of() {
    if constexpr (std::is_same_v<Value, bool>) return FieldType::boolean;
    if constexpr (std::is_same_v<Value, int64_t>) return FieldType::integer;
    if constexpr (std::is_same_v<Value, double>) return FieldType::number;
    if constexpr (std::is_same_v<Value, std::string>) return FieldType::text;
    if constexpr (std::is_same_v<Value, std::vector<int64_t>>) return FieldType::integers;
    if constexpr (std::is_same_v<Value, std::vector<double>>) return FieldType::numbers;
    if constexpr (std::is_same_v<Value, std::vector<std::string>>) return FieldType::texts;
  }
};

/// The schema of struct Config: its top-level fields, then one table per section.
const TableSchema& config_schema();

/// The result of looking up a dotted name.
struct FieldRef {
  const Field* field = nullptr;         ///< nullptr if the name does not exist.
  void* owner = nullptr;                ///< The object that holds the field.
  std::optional<size_t> element = {};   ///< Set if the name is an element of a list of tables.
  const TableSchema* schema = nullptr;  ///< The table of the last part of the name, unless that has no keys.
  std::string known = {};               ///< The part of the name that exists: "training".
  std::string unknown = {};             ///< The first part that does not: "stepz".
};

/// Looks up "training.steps" or "data.sources.0.path" in `object`, an object of the struct that `schema`
/// describes. With `may_append`, an index equal to the length of the list appends an element.
FieldRef find_field(const TableSchema& schema, void* object, std::string_view dotted_name,
                    bool may_append = false);

/// The slot of a field that find_field found, or of the element that the name refers to.
FieldSlot slot_of(const FieldRef& ref);

/// "section.name", or "name" if the section is "".
std::string dotted(std::string_view section, std::string_view name);

/// "an integer (at least 0)", "one of "fp32", "bf16"", "true or false".
std::string expected_text(const Field& field);

/// "at least 1", "above 0 and below 1", "-1, or 0 to 1"; "" if there are no limits.
std::string range_text(const FieldRules& rules);

bool in_range(const FieldRules& rules, double value);

}  // namespace stepforge
