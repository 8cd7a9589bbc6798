#!/usr/bin/env bash
# Installs what the build needs, and only what is missing: Debian packages, and libtorch in a private folder
# under the user's cache directory. Safe to run again at any time; prints nothing to do when all is there.
#
#   scripts/setup.sh            packages and libtorch
#   scripts/setup.sh --print    prints the libtorch folder and does nothing else
#   scripts/setup.sh --packages NAME...    these Debian packages only
#
# STEPFORGE_TORCH=/path/to/site-packages/torch uses an installed PyTorch 2.11 instead.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/stepforge
torch_version=2.11.0
torch_home=$cache/torch-$torch_version
packages=(
  git make g++ cmake ninja-build ccache mold pkg-config unzip python3 python3-pip
  libtomlplusplus-dev libcli11-dev libspdlog-dev libfmt-dev libsimdjson-dev nlohmann-json3-dev
  libpcre2-dev libxxhash-dev librapidcheck-dev libgtest-dev
  clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev libomp-19-dev bible-kjv bible-kjv-text
)

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }

install_packages() {
  local missing=() name
  for name in "$@"; do
    # A tool that is on PATH from elsewhere (a newer cmake, a pyenv) counts as installed.
    case $name in
      git|make|cmake|ccache|mold|unzip|python3|g++) command -v "$name" >/dev/null && continue ;;
      python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
    esac
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as_root=(sudo)
    else
      echo "These Debian packages are missing. Install them, then run the same command again:" >&2
      echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  say "Installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# The folder appears by one rename once everything in it is complete, so an interrupted download starts over cleanly.
install_torch() {
  [ -f "$torch_home/.complete" ] && return
  mkdir -p "$cache"
  exec 9>"$cache/torch.lock"
  flock 9
  [ -f "$torch_home/.complete" ] && return
  local work=$cache/torch-$torch_version.partial
  rm -rf "$work" "$torch_home"
  mkdir -p "$work/wheels"
  say "Downloading libtorch $torch_version (about 550 MB, once per machine)"
  python3 -m pip download --no-deps --require-hashes --only-binary=:all: --python-version 3.11 --implementation cp \
    --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --progress-bar on \
    -d "$work/wheels" -r "$here/torch-wheels.txt"
  say "Unpacking"
  local wheel
  for wheel in "$work"/wheels/*.whl; do
    # Of torch, the headers and the two libraries' worth that we load; CUDA's own libraries stay for the plug-in.
    unzip -q -o "$wheel" -d "$work/site"
  done
  rm -rf "$work/wheels"
  touch "$work/site/.complete"
  mv "$work/site" "$torch_home"
  rm -rf "$work"
  say "libtorch is in $torch_home"
}

if [ "${1:-}" = --print ]; then
  echo "${STEPFORGE_TORCH:-$torch_home/torch}"
  exit 0
fi
if [ "${1:-}" = --packages ]; then
  install_packages "${@:2}"
  exit 0
fi
install_packages "${packages[@]}"
if [ -z "${STEPFORGE_TORCH:-}" ]; then
  install_torch
elif [ ! -f "$STEPFORGE_TORCH/version.py" ]; then
  echo "STEPFORGE_TORCH=$STEPFORGE_TORCH holds no PyTorch (version.py is missing); name the 'torch' folder of its site-packages" >&2
  exit 1
fi
