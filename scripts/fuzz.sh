#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the libFuzzer targets with clang and runs each, for some seconds or for a number of inputs. First inputs are in
# tests/fuzz/corpus; what is found is kept in build/fuzz/corpus. An input that breaks a rule is written to build/fuzz/found and
# ends the run.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]          default: 60 seconds each, all targets
#   scripts/fuzz.sh --runs NUMBER [TARGET...]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
limit=(-max_total_time="${1:-60}")
length="${1:-60} s"
if [ "${1:-}" = --runs ]; then
  limit=(-runs="${2:?the number of inputs for each target}")
  length="$2 inputs"
  shift
fi
shift $(($# > 0 ? 1 : 0))
targets=("$@")
scripts/setup.sh build clang
say "Build of the fuzz targets"
cmake -S . -B build/fuzz -G Ninja -D CMAKE_BUILD_TYPE=RelWithDebInfo -D CMAKE_CXX_COMPILER=clang++-19 -D CMAKE_C_COMPILER=clang-19 \
  -D STEPFORGE_FUZZ=ON -D STEPFORGE_WITH_TORCH=OFF >/dev/null
if [ $# -eq 0 ]; then
  arrow=$(scripts/setup.sh --print-arrow)
  for source in tests/fuzz/*_fuzz.cpp; do
    name=$(basename "$source" .cpp)
    [ "$name" != arrow_fuzz ] || [ -d "$arrow/include" ] || continue  # it needs the libraries of pyarrow
    targets+=("$name")
  done
fi
cmake --build build/fuzz --target "${targets[@]}"
table=""
for name in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus" build/fuzz/found
  seeds=()
  if [ -d "tests/fuzz/corpus/$name" ]; then seeds=("tests/fuzz/corpus/$name"); fi
  # The shipped presets, the templates, the models and the tables of the tests are good first inputs.
  case $name in
    arrow_fuzz) seeds+=(tests/golden/records/arrow) ;;
    chat_record_fuzz) seeds+=(tests/golden/records/chat_records) ;;
    config_fuzz) seeds+=(presets) ;;
    jinja_fuzz) seeds+=(tests/golden/jinja/templates) ;;
    sentencepiece_fuzz) seeds+=(tests/golden/text/sentencepiece) ;;
  esac
  say "$name, $length"
  start=$SECONDS
  "build/fuzz/$name" "${limit[@]}" -max_len=8192 -rss_limit_mb=2048 -malloc_limit_mb=256 -timeout=10 -print_funcs=0 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/found/$name-" "$corpus" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1 ||
    { tail -n 60 "build/fuzz/$name.log"; die "$name: an input breaks a rule; it is in build/fuzz/found"; }
  inputs=$(awk '/number_of_executed_units/ { print $2 }' "build/fuzz/$name.log")
  table+=$(printf '    %-24s %14s %10s' "$name" "$inputs" "$((SECONDS - start)) s")$'\n'
done
printf '    %-24s %14s %10s\n%s' target inputs time "$table"
say "${green}No input broke a rule.${plain}"
