#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing: Debian packages with apt-get, which never removes a package, and libtorch and Arrow in private folders
# under the user's cache directory. Prints what it is about to do; does nothing when all is there.
#
#   scripts/setup.sh [GROUP...]             packages of these groups (default: build), libtorch and Arrow
#   scripts/setup.sh cuda                   also what libtorch needs for training on GPUs: about 1 GB, which takes 2.4 GB of disk
#   scripts/setup.sh cuda-full              also the CUDA libraries that training does not need, instead of stand-ins for them: 0.9 GB more
#   scripts/setup.sh --check [GROUP...]     changes nothing; fails if something is missing
#   scripts/setup.sh --packages NAME...     these Debian packages only
#   scripts/setup.sh --print                prints the libtorch folder
#   scripts/setup.sh --print-arrow          prints the Arrow folder
#
# STEPFORGE_TORCH=/path/to/site-packages/torch uses an installed PyTorch 2.11 instead of the private folder,
# STEPFORGE_ARROW=/path/to/site-packages/pyarrow an installed pyarrow 26. Nothing is added to a PyTorch of yours.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
torch_version=2.11.0
torch_home=$cache/torch-$torch_version
arrow_version=26.0.1
arrow_home=$cache/arrow-$arrow_version
declare -A groups=(
  [build]="git make g++ cmake ninja-build ccache mold pkg-config unzip python3 python3-pip libtomlplusplus-dev libcli11-dev
    libspdlog-dev libfmt-dev libsimdjson-dev nlohmann-json3-dev libyaml-cpp-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev
    libxxhash-dev zlib1g-dev libzstd-dev
    libgtest-dev librapidcheck-dev"
  [lint]="clang-format-19 clang-tidy-19"
  [clang]="clang-19 libclang-rt-19-dev"
  [api]="doxygen"
  [demo]="bible-kjv bible-kjv-text"
  [cuda]="g++ unzip python3 python3-pip"
  [cuda-full]="g++ unzip python3 python3-pip"
  [dist]="patchelf zstd"
)

# A tool that is on PATH from elsewhere (a newer cmake, a pyenv) counts as installed.
is_installed() {
  case $1 in
    git|make|cmake|ccache|mold|unzip|python3|g++) command -v "$1" >/dev/null && return ;;
    ninja-build) command -v ninja >/dev/null && return ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 && return ;;
  esac
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

missing_packages() {
  local name
  for name in "$@"; do is_installed "$name" || printf '%s ' "$name"; done
}

require_debian_12() {
  local system
  system=$(. "${STEPFORGE_OS_RELEASE:-/etc/os-release}" 2>/dev/null && echo "${PRETTY_NAME:-}" "$ID-${VERSION_ID:-}" || uname -s)
  [ "${system##* }" = debian-12 ] ||
    die "only Debian 12 is set up automatically, and this is ${system% *}: use the Dockerfile, or install the equivalents of: $*"
}

install_packages() {
  local missing as_root=()
  read -ra missing <<<"$(missing_packages "$@")"
  [ ${#missing[@]} -gt 0 ] || return 0
  require_debian_12 "${missing[@]}"
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null ||
      die "Debian packages are missing. Install them, then run the same command again:
  sudo apt-get install --no-install-recommends ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing Debian packages with apt-get: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends --no-remove "${missing[@]}" ||
    die "apt-get could not install ${missing[*]}. If one of them conflicts with a package of yours, nothing was removed: resolve the conflict by hand."
}

# fetch_wheels FOLDER REQUIREMENTS: downloads these wheels into FOLDER/wheels.
fetch_wheels() {
  rm -rf "$1"
  mkdir -p "$1/wheels"
  python3 -m pip download --no-deps --require-hashes --only-binary=:all: --python-version 3.11 --implementation cp \
    --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 \
    --platform manylinux2010_x86_64 --progress-bar on -d "$1/wheels" -r "$2"
}

# unpack_wheels FOLDER [PATTERN...]: the files of its wheels that match a pattern (default: all), into FOLDER/site.
unpack_wheels() {
  local wheel
  say "Unpacking"
  for wheel in "$1"/wheels/*.whl; do unzip -q -o "$wheel" "${@:2}" -d "$1/site"; done
}

# install_wheels HOME WHAT REQUIREMENTS WITHOUT [PATTERN...]: unpacks the files of these wheels that match a pattern (default: all). If
# they cannot be downloaded, the script ends, or says WITHOUT and goes on. The folder appears by one rename once it is complete, so an
# interrupted download starts over cleanly. Not to be called in a condition or before ||, which would switch errexit off inside.
install_wheels() {
  local home=$1 what=$2 requirements=$3 without=$4 work=$1.partial
  [ ! -f "$home/.complete" ] || return 0
  mkdir -p "$cache"
  exec 9>"$home.lock"
  flock 9
  [ ! -f "$home/.complete" ] || return 0
  rm -rf "$home"
  say "Downloading $what into $home, once per user"
  fetch_wheels "$work" "$requirements" || {
    [ -n "$without" ] || die "$what could not be downloaded"
    warn "$what could not be downloaded: $without"
    return 0
  }
  unpack_wheels "$work" "${@:5}"
  touch "$work/site/.complete"
  mv "$work/site" "$home"
  rm -rf "$work"
}

install_torch() {
  install_wheels "$torch_home" "libtorch $torch_version (about 550 MB)" scripts/torch-wheels.txt ''
}

# Of the wheel's libraries only the two that are linked. The build does without them.
install_arrow() {
  install_wheels "$arrow_home" "Arrow $arrow_version (about 55 MB)" scripts/arrow-wheel.txt \
    "the build goes on without the reader of Parquet and Arrow files" \
    'pyarrow/include/*' 'pyarrow/libarrow.so.*' 'pyarrow/libparquet.so.*' '*/licenses/*'
}

# add_cuda NAME WHAT GIB REQUIREMENTS: adds libraries to the private folder of libtorch, where libtorch_cuda looks for them. NAME: of the
# file that says that they are complete; GIB: of disk while it works.
add_cuda() {
  local complete=$torch_home/.$1 what=$2 gib=$3 work=$torch_home.$1.partial free
  [ ! -f "$complete" ] || return 0
  exec 9>"$torch_home.lock"
  flock 9
  [ ! -f "$complete" ] || return 0
  free=$(($(df --output=avail -B 1G "$cache" | tail -n 1)))
  [ "$free" -ge "$gib" ] || die "$what need $gib GiB of disk while they are unpacked, and $cache has $free: make room, or set XDG_CACHE_HOME to another folder"
  say "Downloading $what into $torch_home, once per user"
  fetch_wheels "$work" "$4" || die "$what could not be downloaded"
  unpack_wheels "$work" 'nvidia/*/lib/*.so*' '*/[Ll][Ii][Cc][Ee][Nn][Ss][Ee]*'
  cp -rlf "$work/site/." "$torch_home"
  touch "$complete"
  rm -rf "$work"
}

install_cuda() {
  if [ -n "${STEPFORGE_TORCH:-}" ]; then
    say "Nothing is added to $STEPFORGE_TORCH: an installed PyTorch with CUDA has its libraries"
    return 0
  fi
  add_cuda cuda "cuBLAS, cuDNN and NCCL (about 1 GB)" 3 scripts/cuda-wheels.txt
  if [ "$1" = cuda-full ]; then add_cuda cuda-full "the other CUDA libraries (about 0.9 GB)" 3 scripts/cuda-full-wheels.txt; fi
  exec 9>"$torch_home.lock"
  flock 9
  say "Stand-ins for CUDA libraries that are not there"
  python3 scripts/cuda_stubs.py "$torch_home/torch/lib"
}

check_overrides() {
  [ -z "${STEPFORGE_TORCH:-}" ] || [ -f "$STEPFORGE_TORCH/version.py" ] ||
    die "STEPFORGE_TORCH=$STEPFORGE_TORCH has no version.py: set it to the 'torch' folder in the site-packages of a PyTorch 2.11"
  [ -z "${STEPFORGE_ARROW:-}" ] || [ -d "$STEPFORGE_ARROW/include/arrow" ] ||
    die "STEPFORGE_ARROW=$STEPFORGE_ARROW has no include/arrow: set it to the 'pyarrow' folder in the site-packages of a pyarrow 26"
}

packages_of() {
  local group
  for group in "$@"; do
    [ -n "${groups[$group]:-}" ] || die "$group is not a group of packages; the groups are: ${!groups[*]}"
    printf '%s ' ${groups[$group]}
  done
}

case ${1:-} in
  --print) echo "${STEPFORGE_TORCH:-$torch_home/torch}" ;;
  --print-arrow) echo "${STEPFORGE_ARROW:-$arrow_home/pyarrow}" ;;
  --packages) install_packages "${@:2}" ;;
  --check)
    packages=$(packages_of "${@:2}")
    check_overrides
    missing=$(command -v dpkg-query >/dev/null && missing_packages $packages || true)
    [ -n "${STEPFORGE_TORCH:-}" ] || [ -f "$torch_home/.complete" ] || missing+="libtorch"
    [ -z "$missing" ] || die "missing: $missing: run \`make setup\`, which installs them"
    ;;
  *)
    [ $# -gt 0 ] || set -- build
    packages=$(packages_of "$@")
    check_overrides
    install_packages $packages
    if [ -z "${STEPFORGE_TORCH:-}" ]; then install_torch; fi
    if [ -z "${STEPFORGE_ARROW:-}" ]; then install_arrow; fi
    for group in "$@"; do
      case $group in cuda|cuda-full) install_cuda "$group" ;; esac
    done
    ;;
esac
