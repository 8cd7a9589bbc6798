// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/arrow/json_rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <arrow/type_traits.h>
#include <arrow/util/float16.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/table_reader.h"

namespace stepforge {

namespace {

using arrow::Type;

bool is_text(Type::type type) {
  return type == Type::STRING || type == Type::LARGE_STRING || type == Type::STRING_VIEW;
}

bool is_written_as_text(Type::type type) {
  return arrow::is_date(type) || arrow::is_time(type) || type == Type::TIMESTAMP || arrow::is_decimal(type);
}

void require_names(const arrow::FieldVector& fields, const std::string& place);

/// `place`: "file: column \"name\"".
void require_json_type(const arrow::DataType& type, const std::string& place) {
  switch (type.id()) {
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
      return require_json_type(*type.field(0)->type(), place);
    case Type::STRUCT:
      return require_names(type.fields(), place);
    case Type::MAP: {
      const auto& map = static_cast<const arrow::MapType&>(type);
      if (!is_text(map.key_type()->id()))
        throw FormatError(
            format("{} is a {}; only maps with texts as keys have a form in JSON", place, type.ToString()));
      return require_json_type(*map.item_type(), place);
    }
    case Type::DICTIONARY:
      return require_json_type(*static_cast<const arrow::DictionaryType&>(type).value_type(), place);
    case Type::EXTENSION:
      return require_json_type(*static_cast<const arrow::ExtensionType&>(type).storage_type(), place);
    default:
      break;
  }
  const Type::type id = type.id();
  const bool accepted = id == Type::NA || id == Type::BOOL || arrow::is_integer(id) ||
                        arrow::is_floating(id) || is_text(id) || is_written_as_text(id);
  if (!accepted)
    throw FormatError(format("{} is of type {}, which has no form in JSON: leave it out of the file", place,
                             type.ToString()));
}

void require_names(const arrow::FieldVector& fields, const std::string& place) {
  std::set<std::string_view> names;
  for (const auto& field : fields) {
    const std::string here = format("{}: column {}", place, quoted_for_message(field->name()));
    if (find_invalid_utf8(field->name()) != std::string::npos)
      throw FormatError(here + ": its name is not UTF-8");
    if (!names.insert(field->name()).second) throw FormatError(here + " occurs twice");
    require_json_type(*field->type(), here);
  }
}

template <typename Number>
void append_number(Number number, std::string& out) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), end);
}

/// The shortest digits that give the number again; always with a point or an exponent.
void append_double(double number, std::string& out) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  const size_t begin = out.size();
  append_number(number, out);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

template <typename ArrayType>
const ArrayType& as(const arrow::Array& array) {
  return static_cast<const ArrayType&>(array);
}

void append_key(std::string_view key, std::string& out) {
  append_json_text(out, key);
  out += ':';
}

/// Appends values to a text until it has `limit` bytes. Values may be shared, so a small file can hold an enormous row.
class RowWriter {
 public:
  RowWriter(std::string& out, int64_t limit) : out_(out), limit_(limit) {}

  /// Calls `append(k)` for `count` members, with commas between them.
  template <typename Append>
  void members(char open, char close, int64_t count, const Append& append) {
    out_ += open;
    for (int64_t k = 0; k < count && !is_full(); ++k) {
      if (k > 0) out_ += ',';
      append(k);
    }
    out_ += close;
  }

  void value(const arrow::Array& array, int64_t i) {
    if (array.type_id() == Type::NA || array.IsNull(i)) {
      out_ += "null";
    } else {
      valid_value(array, i);
    }
  }

  bool is_full() const { return std::ssize(out_) > limit_; }

 private:
  template <typename ListArray>
  void list(const ListArray& list, int64_t i) {
    members('[', ']', list.value_length(i),
            [&](int64_t k) { value(*list.values(), list.value_offset(i) + k); });
  }

  /// Without null members: a struct has those of all rows, such as the arguments of every tool, and those that a row does not
  /// have are null.
  void structure(const arrow::StructArray& array, int64_t i) {
    std::vector<int> present;
    for (int k = 0; k < array.num_fields(); ++k) {
      const arrow::Array& field = *array.field(k);
      if (field.type_id() != Type::NA && !field.IsNull(i)) present.push_back(k);
    }
    members('{', '}', std::ssize(present), [&](int64_t k) {
      const int field = present[static_cast<size_t>(k)];
      append_key(array.type()->field(field)->name(), out_);
      value(*array.field(field), i);
    });
  }

  void map(const arrow::MapArray& map, int64_t i) {
    members('{', '}', map.value_length(i), [&](int64_t k) {
      value(*map.keys(), map.value_offset(i) + k);
      out_ += ':';
      value(*map.items(), map.value_offset(i) + k);
    });
  }

  void valid_value(const arrow::Array& array, int64_t i);

  std::string& out_;
  int64_t limit_;
};

void RowWriter::valid_value(const arrow::Array& array, int64_t i) {
  switch (array.type_id()) {
    case Type::BOOL:
      out_ += as<arrow::BooleanArray>(array).Value(i) ? "true" : "false";
      return;
    case Type::INT8:
      return append_number(as<arrow::Int8Array>(array).Value(i), out_);
    case Type::INT16:
      return append_number(as<arrow::Int16Array>(array).Value(i), out_);
    case Type::INT32:
      return append_number(as<arrow::Int32Array>(array).Value(i), out_);
    case Type::INT64:
      return append_number(as<arrow::Int64Array>(array).Value(i), out_);
    case Type::UINT8:
      return append_number(as<arrow::UInt8Array>(array).Value(i), out_);
    case Type::UINT16:
      return append_number(as<arrow::UInt16Array>(array).Value(i), out_);
    case Type::UINT32:
      return append_number(as<arrow::UInt32Array>(array).Value(i), out_);
    case Type::UINT64:
      return append_number(as<arrow::UInt64Array>(array).Value(i), out_);
    case Type::HALF_FLOAT: {
      const auto bits = as<arrow::HalfFloatArray>(array).Value(i);
      return append_double(arrow::util::Float16::FromBits(bits).ToDouble(), out_);
    }
    case Type::FLOAT:
      return append_double(as<arrow::FloatArray>(array).Value(i), out_);
    case Type::DOUBLE:
      return append_double(as<arrow::DoubleArray>(array).Value(i), out_);
    case Type::STRING:
      return append_json_text(out_, as<arrow::StringArray>(array).GetView(i));
    case Type::LARGE_STRING:
      return append_json_text(out_, as<arrow::LargeStringArray>(array).GetView(i));
    case Type::STRING_VIEW:
      return append_json_text(out_, as<arrow::StringViewArray>(array).GetView(i));
    case Type::LIST:
      return list(as<arrow::ListArray>(array), i);
    case Type::LARGE_LIST:
      return list(as<arrow::LargeListArray>(array), i);
    case Type::FIXED_SIZE_LIST:
      return list(as<arrow::FixedSizeListArray>(array), i);
    case Type::STRUCT:
      return structure(as<arrow::StructArray>(array), i);
    case Type::MAP:
      return map(as<arrow::MapArray>(array), i);
    case Type::DICTIONARY: {
      const auto& encoded = as<arrow::DictionaryArray>(array);
      return value(*encoded.dictionary(), encoded.GetValueIndex(i));
    }
    case Type::EXTENSION:
      return value(*as<arrow::ExtensionArray>(array).storage(), i);
    default:  // dates, times and decimals, by require_json_type()
      return append_json_text(out_, array.GetScalar(i).ValueOrDie()->ToString());
  }
}

}  // namespace

JsonRows::JsonRows(const arrow::Schema& schema, const std::string& file, int64_t max_row_bytes)
    : max_row_bytes_(max_row_bytes) {
  require_names(schema.fields(), file);
  for (const auto& field : schema.fields()) append_key(field->name(), keys_.emplace_back());
}

void JsonRows::append(const arrow::RecordBatch& batch, int64_t row, std::string& out) const {
  RowWriter writer(out, std::ssize(out) + max_row_bytes_);
  writer.members('{', '}', std::ssize(keys_), [&](int64_t k) {
    out += keys_[static_cast<size_t>(k)];
    writer.value(*batch.column(static_cast<int>(k)), row);
  });
  if (writer.is_full())
    throw FormatError(format("a row of more than {} as JSON", human_bytes(max_row_bytes_)));
}

}  // namespace stepforge
