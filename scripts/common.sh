# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: paths, messages, timing, configuring and building.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
program=build/release/stepforge
cache=${XDG_CACHE_HOME:-$HOME/.cache}/stepforge

# Another clone finds the objects of files that are compiled alone in ccache; those of unity files name its folder.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\033[1m' dim=$'\033[2m' red=$'\033[1;31m' green=$'\033[1;32m' blue=$'\033[1;36m' plain=$'\033[0m'
else
  bold='' dim='' red='' green='' blue='' plain=''
fi

say() { printf '%s==>%s %s\n' "$bold" "$plain" "$*"; }
warn() { printf '%swarning:%s %s\n' "$red" "$plain" "$*"; }
die() { printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2; exit 1; }

# stage NAME COMMAND...: runs it and prints how long it took. Commands run with errexit, which `stage ... || ...` would switch off.
stage() {
  local name=$1 began=$SECONDS
  shift
  say "$name"
  "$@"
  printf '%s    %s: %d s%s\n' "$dim" "$name" $((SECONDS - began)) "$plain"
}

# Runs CMake every time (a second or two), since the commit, STEPFORGE_TORCH or STEPFORGE_ARROW may have changed. Prints only errors.
configure() {
  local preset=$1 args=(-D STEPFORGE_ARROW="$(scripts/setup.sh --print-arrow)") log
  if [[ $preset = release || $preset = lint ]]; then args+=(-D STEPFORGE_TORCH="$(scripts/setup.sh --print)"); fi
  log=$(cmake --preset "$preset" "${args[@]}" 2>&1) || { printf '%s\n' "$log" >&2; return 1; }
}
build_preset() {
  configure "$1"
  cmake --build --preset "$1" "${@:2}"
}

# docs/configuration.md as the built program would write it.
configuration_page() {
  printf '# Configuration\n\n'
  printf 'Written by `make docs` from the schema in `stepforge/config/`; the same text without Markdown: `stepforge config schema`.\n'
  printf 'On the command line every key is given as `section.key=value`. Precedence: preset, then file, then command line.\n'
  printf 'A key that you set but that the job does not read is refused if another choice of the configuration excludes it. If the number\n'
  printf 'of ranks, the kind of the data or a switch decides, a line at the start names it instead.\n\n'
  "$program" config schema --format markdown
}
