#include "stepforge/base/json.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {
namespace {

/// Walks over text and remembers how far the parser has read, which its events do not tell.
class TrackingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* next, const char** seen) : next_(next), seen_(seen) {}
  reference operator*() const { return *next_; }
  TrackingIterator& operator++() {
    *seen_ = ++next_;
    return *this;
  }
  TrackingIterator operator++(int) {
    const TrackingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackingIterator& other) const { return next_ == other.next_; }
  bool operator!=(const TrackingIterator& other) const { return next_ != other.next_; }

 private:
  const char* next_;
  const char** seen_;
};

/// Builds the document from the parser's events. The library's own builder looks for each new key among all
/// the keys before it, which takes minutes for a vocabulary of 100,000 words; this one remembers the keys of
/// open objects.
class StrictBuilder {
 public:
  StrictBuilder(const std::string& source, const char* begin, const char* const& seen, int max_depth)
      : source_(source), begin_(begin), seen_(seen), max_depth_(max_depth) {}

  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string& /*text*/) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t& /*value*/) { return false; }

  bool start_object(size_t /*size*/) { return open(Json::object()); }
  bool start_array(size_t /*size*/) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = open_.back();
    if (!level.keys.insert(name).second) {
      fail(format("key \"{}\" appears twice in one JSON object", name));
    }
    level.key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/, const Json::exception& error) {
    throw FormatError(format("{}: bad JSON at byte {}: {}", source_, position, error.what()));
  }

 private:
  struct Level {
    Json* value;
    std::string key;  // of the member to come, in an object
    std::unordered_set<std::string> keys;
  };

  [[noreturn]] void fail(const std::string& fault) const {
    throw FormatError(format("{}: byte {}: {}", source_, seen_ - begin_, fault));
  }

  /// Puts the value into its place and returns where it is now.
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = open_.back();
    if (level.value->is_array()) {
      auto& elements = level.value->get_ref<Json::array_t&>();
      return &elements.emplace_back(std::move(value));
    }
    // An ordered object is a vector of members; adding at its end skips the search for an equal key.
    std::vector<Json::object_t::value_type>& members = level.value->get_ref<Json::object_t&>();
    return &members.emplace_back(std::move(level.key), std::move(value)).second;
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      fail(format("JSON nested deeper than {} levels", max_depth_));
    }
    Json* placed = place(std::move(value));
    open_.push_back({placed, {}, {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& source_;
  const char* begin_;
  const char* const& seen_;
  int max_depth_;
  Json root_;
  // A pointer to an open value stays good: its container grows only after the value is closed.
  std::vector<Level> open_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    throw FormatError(
        format("{}: {} bytes of JSON; at most {} are accepted", source, text.size(), limits.max_bytes));
  }
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* seen = begin;
  StrictBuilder builder(source, begin, seen, limits.max_depth);
  const char* ignored = nullptr;
  Json::sax_parse(TrackingIterator(begin, &seen), TrackingIterator(end, &ignored), &builder);
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_file(path, limits.max_bytes), path.string(), limits);
}

}  // namespace stepforge
