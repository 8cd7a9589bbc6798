#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the demo's book, the King James text of the Debian package bible-kjv: a paragraph for each chapter, without the
# references ("Ge1:1") before the verses.
set -euo pipefail
bible -f gen1:1-rev22:21 | awk '
  # "1Cor13:4 Charity suffereth long": a chapter ends where the part before the colon changes.
  { reference = $1; sub(/:[0-9]+$/, "", reference); text = substr($0, length($1) + 2) }
  NR > 1 && reference != chapter { printf "\n\n" }
  NR > 1 && reference == chapter { printf "\n" }
  { chapter = reference; printf "%s", text }
  END { printf "\n" }'
