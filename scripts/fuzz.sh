#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the libFuzzer targets with clang and runs each for some seconds. The corpus is kept in build/fuzz/corpus. An input
# that breaks a rule is written to build/fuzz/found and ends the run.
#
#   scripts/fuzz.sh [SECONDS]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
seconds=${1:-60}
scripts/setup.sh build clang
say "Build of the fuzz targets"
cmake -S . -B build/fuzz -G Ninja -D CMAKE_BUILD_TYPE=RelWithDebInfo -D CMAKE_CXX_COMPILER=clang++-19 -D CMAKE_C_COMPILER=clang-19 \
  -D STEPFORGE_FUZZ=ON -D STEPFORGE_WITH_TORCH=OFF >/dev/null
cmake --build build/fuzz --target fuzzers
for source in tests/fuzz/*_fuzz.cpp; do
  name=$(basename "$source" .cpp)
  [ -e "build/fuzz/$name" ] || continue  # arrow_fuzz needs the libraries of pyarrow
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus" build/fuzz/found
  seeds=()
  # The shipped presets, and the templates and tables of the tests are good first inputs.
  if [ "$name" = config_fuzz ]; then seeds=(presets); fi
  if [ "$name" = arrow_fuzz ]; then seeds=(tests/golden/data/arrow); fi
  if [ "$name" = jinja_fuzz ]; then seeds=(tests/golden/jinja/templates); fi
  say "$name for $seconds s"
  "build/fuzz/$name" -max_total_time="$seconds" -max_len=8192 -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10 -print_funcs=0 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/found/$name-" "$corpus" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1 ||
    { tail -n 60 "build/fuzz/$name.log"; die "$name: an input breaks a rule; it is in build/fuzz/found"; }
  awk '/number_of_executed_units/ { print "    " $2 " inputs" }' "build/fuzz/$name.log"
done
say "${green}No input broke a rule.${plain}"
