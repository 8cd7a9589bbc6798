#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the program, its libraries and the plug-ins that are built into build/dist/stepforge-VERSION-linux-MACHINE.tar.zst. It may be unpacked
# anywhere, and uses the PyTorch that is installed there (docs/building.md). Then unpacks it elsewhere and trains some steps.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
largest=$((60 * 1024 * 1024))
folder=build/dist

# Libraries that every Linux has, whose versions must not be older than ours.
of_the_system='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so'

build_all() {
  local targets=(stepforge)
  if [ -f build/release/libstepforge_cuda.so ]; then
    targets+=(stepforge_cuda)
  else
    say "Without the plug-in for GPUs: \`make cuda\` builds it, where nvcc is found"
  fi
  build_preset release --target "${targets[@]}"
}

# The libraries that these files need, but those of the system, of Stepforge and of libtorch.
needed_libraries() {
  LC_ALL=C ldd "$@" | awk '$2 == "=>" { print $1, $3 }' | sort -u | while read -r name path; do
    [[ $name =~ $of_the_system || $name = libstepforge_* ]] || realpath -s -- "$path"
  done
}

# Whose headers are compiled into the program.
header_packages='libcli11-dev nlohmann-json3-dev'

# The licence of the Debian package that a library is from.
copy_licence() {
  local package
  package=$(dpkg-query --search "$(realpath -- "$1")" 2>/dev/null || dpkg-query --search "*/$(basename "$(realpath -- "$1")")")
  package=${package%%:*}
  cp -- "/usr/share/doc/$package/copyright" "$2/$package.txt"
}

copy_libraries() {
  local library arrow
  cp -- build/release/stepforge "$tree/bin"
  for library in core torch arrow cuda; do
    library=build/release/libstepforge_$library.so
    if [ -f "$library" ]; then cp -- "$library" "$tree/lib"; fi
  done
  for library in $(needed_libraries "$tree/bin/stepforge" build/release/libstepforge_core.so); do
    cp -L -- "$library" "$tree/lib"
    copy_licence "$library" "$tree/licenses"
  done
  for library in $header_packages; do cp -- "/usr/share/doc/$library/copyright" "$tree/licenses/$library.txt"; done
  if [ -f "$tree/lib/libstepforge_arrow.so" ]; then
    arrow=$(scripts/setup.sh --print-arrow)
    cp -L -- "$arrow"/libarrow.so.[0-9]* "$arrow"/libparquet.so.[0-9]* "$tree/lib"
    for library in "$arrow"/../pyarrow-*/licenses/*; do cp -- "$library" "$tree/licenses/arrow-$(basename "$library")"; done
  fi
}

# Libraries find each other in their own folder, and libtorch once the program has loaded it.
make_relocatable() {
  strip --strip-unneeded "$tree"/bin/* "$tree"/lib/*
  local library
  for library in "$tree"/lib/*; do patchelf --set-rpath '$ORIGIN' "$library"; done
  patchelf --set-rpath '$ORIGIN/../lib' "$tree/bin/stepforge"
}

pack() {
  rm -rf "$folder"
  mkdir -p "$tree"/{bin,lib,licenses}
  copy_libraries
  make_relocatable
  cp -r -- README.md LICENSE docs presets machines "$tree"
  tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$folder" "$release" | zstd --quiet -19 --threads=0 -o "$archive"
  rm -rf "$tree"
  local bytes
  bytes=$(stat -c %s "$archive")
  [ "$bytes" -le "$largest" ] || die "$archive has $bytes bytes, more than $largest"
}

# Other machines lack the libraries that this one has: the archive may name only those of the system, its own, and libtorch's.
check_libraries() {
  local torch=$1 name
  for name in $(patchelf --print-needed "$release"/bin/* "$release"/lib/* | sort -u); do
    [[ $name =~ $of_the_system || -e $release/lib/$name ]] || compgen -G "$torch/lib/$name" >/dev/null ||
      compgen -G "$torch/../nvidia/*/lib/$name" >/dev/null ||
      die "the archive needs $name, which is neither in it nor in PyTorch"
  done
}

# In a folder of its own, with the libtorch of this build, and not with its other libraries: check_libraries. Not tried: the reader of Parquet and
# Arrow files, the plug-in for GPUs, and systems that are older than this one.
try_out() (
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  torch=$(realpath "$(scripts/setup.sh --print)")
  tar --extract --zstd --file "$archive" --directory "$work"
  cd "$work"
  check_libraries "$torch"
  env -i PATH=/usr/bin:/bin HOME="$work" STEPFORGE_TORCH="$torch" "$release/bin/stepforge" train --preset debug training.steps=3 run_dir=run >log 2>&1 ||
    { cat log; die "the unpacked archive cannot train"; }
)

# The newest version of GLIBC or GLIBCXX that a file of the archive needs.
newest() { tar --extract --zstd --file "$archive" --to-stdout --wildcards '*/bin/*' '*/lib/*' | grep -ao "$1_[0-9][0-9.]*[0-9]" | sort -uV | tail -n 1; }

scripts/setup.sh build dist
stage "Release build" build_all
version=$("$program" version | awk '$1 == "stepforge" { print $2 }')
release=stepforge-$version-linux-$(uname -m)
tree=$folder/$release
archive=$folder/$release.tar.zst
stage "Archive" pack
stage "Training from the unpacked archive" try_out
say "${bold}$archive${plain}: $(numfmt --to=iec-i --suffix=B "$(stat -c %s "$archive")"); it needs $(newest GLIBC), $(newest GLIBCXX) and a PyTorch $("$program" version | awk '$1 == "libtorch" { print $2 }')"
