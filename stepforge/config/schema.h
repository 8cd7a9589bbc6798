// SPDX-License-Identifier: Apache-2.0
// The typed schema: what fields a configuration struct has, and for each its type, unit, range and
// description. Parsing, validation, help, documentation and printing are all walks over it.
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

/// What it means on resume that a value differs from the checkpoint's.
struct OnResume {
  bool reported = true;             ///< false: nobody needs to know
  std::optional<Guard> guard = {};  ///< refused unless checkpoint.allow_changed names it
};
inline constexpr OnResume unreported{.reported = false};
constexpr OnResume guarded(Guard guard) {
  return {.guard = guard};
}

/// What a field accepts beside its type.
struct FieldRules {
  std::string_view doc;                ///< One sentence.
  std::string_view unit = {};          ///< Of a number: "tokens", "steps".
  std::optional<double> min = {};      ///< Smallest accepted number.
  std::optional<double> max = {};      ///< Largest accepted number.
  std::optional<double> above = {};    ///< Numbers must be above this.
  std::optional<double> below = {};    ///< Numbers must be below this.
  std::optional<double> special = {};  ///< One number accepted outside the range; `doc` says what it means.
  std::vector<std::string_view> choices = {};  ///< The accepted names; of a list, of its elements. Empty:
                                               ///< any string, or all names of the field's enum.
  bool non_empty = false;                      ///< An empty string is refused.
  std::optional<OnResume> on_resume = {};      ///< Empty: as the table around the field.
};

/// An enum, or a list of them, as the names of its values.
struct ChoiceSlot {
  void* value;
  std::vector<std::string_view> (*names)(const void* value);  ///< One name of a single value.
  void (*set)(void* value, std::span<const std::string> names);
};

/// A nested table inside its owner.
struct TableSlot {
  void* object;
};

/// A std::vector of structs without its element type.
struct TableListSlot {
  void* list;
  size_t (*size)(void* list);
  void* (*at)(void* list, size_t index);
  void (*resize)(void* list, size_t count);
};

/// The place of one field's value inside one object.
using FieldSlot = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                               std::vector<std::string>*, ChoiceSlot, TableSlot, TableListSlot>;

enum class FieldType { boolean, integer, number, text, integers, texts, choice, choices, table, tables };

/// Whether a value of the field is a TOML array of plain values.
inline bool is_list(FieldType type) {
  return type == FieldType::integers || type == FieldType::texts || type == FieldType::choices;
}

struct Field {
  std::string name;
  FieldType type;
  FieldRules rules;
  std::shared_ptr<const TableSchema>
      table;  ///< Of types table and tables: the schema of the (element) struct.
  std::function<FieldSlot(void* owner)>
      slot;  ///< Finds this field's value in an object of the schema's struct.
};

/// The fields of one struct, in the order in which they are printed.
class TableSchema {
 public:
  const std::vector<Field>& fields() const { return fields_; }
  /// nullptr if there is none of that name.
  const Field* find(std::string_view name) const;
  std::vector<std::string> names() const;
  /// A fresh object of the struct; its values are the defaults.
  std::shared_ptr<void> make_default() const { return make_default_(); }

 protected:
  explicit TableSchema(std::function<std::shared_ptr<void>()> make_default)
      : make_default_(std::move(make_default)) {}
  void add(std::string_view name, FieldType type, FieldRules rules, std::shared_ptr<const TableSchema> table,
           std::function<FieldSlot(void*)> slot);

 private:
  std::vector<Field> fields_;
  std::function<std::shared_ptr<void>()> make_default_;
};

/// The value that a name of `choice_names` stands for.
template <typename Choice>
Choice choice_from_name(std::string_view name) {
  const auto names = choice_names(Choice{});
  return static_cast<Choice>(std::find(names.begin(), names.end(), name) - names.begin());
}

/// Whether `Value` is an enum or a list of enums, and how a slot reads and writes it.
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

/// A TableSchema being written down for the struct `Owner`.
template <typename Owner>
class SchemaOf : public TableSchema {
 public:
  SchemaOf() : TableSchema([]() -> std::shared_ptr<void> { return std::make_shared<Owner>(); }) {}

  template <typename Value>
    requires(!ChoiceTraits<Value>::value)
  SchemaOf& field(std::string_view name, Value Owner::* member, FieldRules rules) {
    add(name, type_of<Value>(), std::move(rules), nullptr,
        [member](void* owner) -> FieldSlot { return &(static_cast<Owner*>(owner)->*member); });
    return *this;
  }

  template <typename Value>
    requires ChoiceTraits<Value>::value
  SchemaOf& field(std::string_view name, Value Owner::* member, FieldRules rules) {
    using Choice = typename ChoiceTraits<Value>::Type;
    if (rules.choices.empty()) {
      const auto names = choice_names(Choice{});
      rules.choices.assign(names.begin(), names.end());
    }
    add(name, ChoiceTraits<Value>::is_list ? FieldType::choices : FieldType::choice, std::move(rules),
        nullptr, [member](void* owner) -> FieldSlot {
          return ChoiceSlot{&(static_cast<Owner*>(owner)->*member), &ChoiceTraits<Value>::names,
                            &ChoiceTraits<Value>::set};
        });
    return *this;
  }

  /// A nested table.
  template <typename Table>
  SchemaOf& table(std::string_view name, Table Owner::* member, const SchemaOf<Table>& schema,
                  std::string_view doc, std::optional<OnResume> on_resume = {}) {
    add(name, FieldType::table, {.doc = doc, .on_resume = on_resume},
        std::make_shared<const TableSchema>(schema),
        [member](void* owner) -> FieldSlot { return TableSlot{&(static_cast<Owner*>(owner)->*member)}; });
    return *this;
  }

  /// A list of tables.
  template <typename Table>
  SchemaOf& tables(std::string_view name, std::vector<Table> Owner::* member, const SchemaOf<Table>& schema,
                   std::string_view doc, std::optional<OnResume> on_resume = {}) {
    using List = std::vector<Table>;
    add(name, FieldType::tables, {.doc = doc, .on_resume = on_resume},
        std::make_shared<const TableSchema>(schema), [member](void* owner) -> FieldSlot {
          return TableListSlot{
              &(static_cast<Owner*>(owner)->*member),
              [](void* list) { return static_cast<List*>(list)->size(); },
              [](void* list, size_t index) -> void* { return &(*static_cast<List*>(list))[index]; },
              [](void* list, size_t count) { static_cast<List*>(list)->resize(count); }};
        });
    return *this;
  }

 private:
  template <typename Value>
  static constexpr FieldType type_of() {
    if constexpr (std::is_same_v<Value, bool>) return FieldType::boolean;
    if constexpr (std::is_same_v<Value, int64_t>) return FieldType::integer;
    if constexpr (std::is_same_v<Value, double>) return FieldType::number;
    if constexpr (std::is_same_v<Value, std::string>) return FieldType::text;
    if constexpr (std::is_same_v<Value, std::vector<int64_t>>) return FieldType::integers;
    if constexpr (std::is_same_v<Value, std::vector<std::string>>) return FieldType::texts;
  }
};

/// The schema of struct Config: the two fields at the top, then one table per section.
const TableSchema& config_schema();

/// A field found by its dotted name. `field` is nullptr if there is none; then `known` names the part that
/// was found
/// ("training"), `unknown` the part that was not ("stepz"), and `schema` is where it was sought.
struct FieldRef {
  const Field* field = nullptr;
  void* owner = nullptr;          ///< The object that holds the field.
  std::optional<size_t> element;  ///< The name ends in an index: that element of a list of tables.
  const TableSchema* schema = nullptr;
  std::string known;
  std::string unknown;
};

/// Finds "training.steps" or "data.sources.0.path" in `object`, a struct of `schema`. An index equal to the
/// length of its list appends an element if `may_append`.
FieldRef find_field(const TableSchema& schema, void* object, std::string_view dotted_name,
                    bool may_append = false);

/// The slot of the field that find_field found; of an element of a list of tables, that element.
FieldSlot slot_of(const FieldRef& place);

/// "section.name", or "name" at the top.
std::string dotted(std::string_view section, std::string_view name);

/// "an integer (at least 0)", "one of "fp32", "bf16"", "true or false".
std::string expected_text(const Field& field);

/// "at least 1", "above 0 and below 1", "-1, or 0 to 1"; "" without limits.
std::string range_text(const FieldRules& rules);

bool in_range(const FieldRules& rules, double value);

}  // namespace stepforge
