// What the mixture draws rows from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stepforge/data/batch.h"

namespace stepforge {

/// A fixed number of rows, each readable at random and from several threads.
class SampleSource {
 public:
  SampleSource() = default;
  virtual ~SampleSource() = default;
  SampleSource(const SampleSource&) = delete;
  SampleSource& operator=(const SampleSource&) = delete;

  /// For messages: where the rows come from.
  virtual const std::string& name() const = 0;
  /// Rows in one epoch of this source.
  virtual int64_t samples() const = 0;
  virtual int64_t seq_len() const = 0;
  /// Fills `row` with row `sample` in [0, samples()). Throws FormatError if the stored tokens are bad.
  virtual void read(int64_t sample, Row& row) const = 0;
  /// Equal for sources that deliver equal rows.
  virtual const std::string& fingerprint() const = 0;
  /// All tokens of the source, the ones in no full row included.
  virtual int64_t tokens() const = 0;
  /// UTF-8 bytes of the text behind tokens(); none if that is not known.
  virtual std::optional<int64_t> text_bytes() const = 0;
};

}  // namespace stepforge
