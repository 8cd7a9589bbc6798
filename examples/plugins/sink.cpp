// SPDX-License-Identifier: Apache-2.0
// A metric sink with a section of its own: losses as CSV, in the file that [csv] names.
#include <fstream>

#include <stepforge/base/plugin.h>
#include <stepforge/config/config_section.h>
#include <stepforge/train/callback_kinds.h>

using namespace stepforge;

struct Csv {
  std::string file;
};

class CsvSink : public MetricsSink {
 public:
  explicit CsvSink(const std::string& file) : file_(file, std::ios::app) {}
  std::string name() const override { return "csv"; }
  void write(const MetricsRecord& record) override {
    if (const auto loss = record.find(metric::loss)) file_ << record.step << ',' << *loss << '\n';
  }
  void flush() override { file_.flush(); }

 private:
  std::ofstream file_;
};

static std::unique_ptr<MetricsSink> open_csv(const SinkRequest& request) {
  const Csv& csv = request.config.extensions.section<Csv>();
  if (!request.is_main || csv.file.empty()) return nullptr;
  return std::make_unique<CsvSink>(csv.file);
}

STEPFORGE_PLUGIN(registry) {
  const auto fields = SchemaOf<Csv>().field("file", &Csv::file, "File to append to; empty means none.");
  registry.add(config_section("csv", fields, "Losses as CSV.", kUnreported));
  registry.add(SinkKind{"csv", open_csv});
}
