#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From raw text to a model that generates text: sets up, builds, trains a small model on a book in some minutes, kills the
# training on purpose, resumes it, exports a Hugging Face folder and generates from it. Prints every command before it runs.
#
#   scripts/demo.sh [FILE]       FILE: a text of yours instead of the King James Bible
set -euo pipefail
given=${1:+$(realpath -- "$1")}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Each text has a run of its own: runs/demo, or runs/demo-NAME.
run=runs/demo
if [ -n "$given" ]; then
  name=$(basename -- "$given")
  name=${name%.*}
  run+=-${name//[^A-Za-z0-9_.-]/-}
fi
text=$run-text.txt
config=$run.toml
trainer=

title() { printf '\n%s%s%s\n' "$blue" "$*" "$plain"; }
show() { printf '%s$ %s%s\n' "$dim" "$*" "$plain"; }
run_shown() {
  local argument shown=()
  for argument in "$@"; do
    case $argument in *" "*) shown+=("\"$argument\"") ;; *) shown+=("$argument") ;; esac
  done
  show "${shown[*]}"
  "$@"
}

# Nothing is deleted: an earlier run of the same text is moved aside.
move_old_run() {
  [ -e "$run" ] || return 0
  local old
  old=$run-before-$(date +%Y%m%d-%H%M%S)
  mv -- "$run" "$old"
  say "The earlier run is now in $old"
}

prepare_text() {
  if [ -n "$given" ]; then
    [ -r "$given" ] || die "cannot read $given"
    title "1. The text: $given"
    show "cp $given $text"
    cp -- "$given" "$text"
    prompt=$(grep -m1 '[^[:space:]]' "$text" | awk '{ print $1, $2, $3 }' | sed 's/ *$//; s/["\\]//g')
  else
    title "1. The text: the King James Bible, 1,189 chapters, from the Debian package bible-kjv"
    show "scripts/book.sh > $text"
    scripts/book.sh >"$text"
    prompt="And it came to pass"
  fi
  bytes=$(wc -c <"$text")
  [ "$bytes" -ge 20000 ] || die "$text is too short to learn from: $bytes bytes; a few hundred kilobytes are a good start"
  awk -v bytes="$bytes" 'BEGIN { printf "%.1f MB of text:\n", bytes / 1e6 }'
  head -c 300 "$text" | head -n 3 | sed "s/^/    $dim/; s/\$/$plain/"
}

# 800 steps, fewer for a short text (about 20 passes over it: a step reads 2,048 tokens, some 8 kB).
choose_steps() {
  steps=$((20 * bytes / 8192))
  steps=$((steps < 100 ? 100 : steps > 800 ? 800 : steps))
  steps=${STEPFORGE_DEMO_STEPS:-$steps}
  [ "$steps" -ge 10 ] || die "STEPFORGE_DEMO_STEPS = $steps must be at least 10"
  checkpoint_every=$((steps / 10))
  # Between two checkpoints, so that the resumed run has steps to repeat.
  kill_at=$((checkpoint_every * 3 + checkpoint_every / 2))
}

# Holds out 2 % of the documents for validation, or 20 kB of a short text. A document is a paragraph, or a line if the text has
# hardly any paragraphs.
choose_validation() {
  local paragraphs lines
  paragraphs=$(awk 'BEGIN { RS = "" } END { print NR }' "$text")
  lines=$(wc -l <"$text")
  document=paragraph validate_every=$((steps / 4))
  held_out=$(awk -v bytes="$bytes" 'BEGIN { share = 20000 / bytes; printf "%.3f", (share < 0.02 ? 0.02 : (share > 0.2 ? 0.2 : share)) }')
  [ "$paragraphs" -ge 100 ] && return
  document=line
  [ "$lines" -ge 100 ] && return
  say "No validation: $text has $paragraphs paragraphs and $lines lines, too few to hold some out"
  document=file held_out=0.0 validate_every=0
}

write_config() {
  choose_steps
  choose_validation
  cat >"$config" <<END
# Written by \`make demo\`. docs/configuration.md and \`stepforge config schema\` describe every key.
preset = "demo"
run_dir = "$run"

[data]
sources = [{ path = "$text" }]
document = "$document"
validation_fraction = $held_out

[training]
steps = $steps

[checkpoint]
interval = $checkpoint_every
keep_latest_k = 2

[validation]
freq = $validate_every

[sampling]
freq = $((steps / 4))
prompt = "$prompt"
max_tokens = 60

[metrics]
log_freq = $(((steps + 49) / 50))
END
  title "2. The run: a preset and the keys that differ from it, in $config"
  sed "s/^/    /" "$config"
}

last_step() {
  { tail -n 1 "$run/metrics.jsonl" 2>/dev/null || true; } | sed -n 's/.*"step":\([0-9]*\).*/\1/p'
}

train_and_kill() {
  title "3. Training, with a kill planned at step $kill_at"
  show "$program train $config"
  "$program" train "$config" &
  trainer=$!
  local step=0
  while [ "${step:-0}" -lt "$kill_at" ]; do
    sleep 0.5
    kill -0 "$trainer" 2>/dev/null || { wait "$trainer" && die "training ended before step $kill_at" || die "training failed"; }
    step=$(last_step)
  done
  kill -9 "$trainer"
  wait "$trainer" 2>/dev/null || true
  trainer=
  # The killed trainer could not clear its status line.
  if [ -t 1 ]; then printf '\r\033[K'; fi
  printf '\n%s    kill -9  %s at step %s: no warning and no clean-up, as in a power cut.\n\n' "$red" "$plain" "$step"
}

resume() {
  title "4. The same command again: it finds the last complete checkpoint and continues from there, bit for bit"
  show "$program train $config"
  "$program" train "$config" &
  trainer=$!
  wait "$trainer" || die "training failed"
  trainer=
}

export_and_generate() {
  title "5. Export: a folder that Hugging Face transformers loads unchanged"
  run_shown "$program" export "$run" "$run/export"
  (cd "$run/export" && stat -c '    %-28n %10s bytes' ./*)

  title "6. Text generated by the exported model"
  run_shown "$program" generate "$run/export" --prompt "$prompt" --max-tokens 150 --temperature 0.7 --seed 1

  title "7. A plot of loss, gradient norm, learning rate and speed"
  run_shown "$program" plot "$run" --output "$run/plot.svg"
}

what_next() {
  title "What to try next"
  cat <<END
  Generate more text     $program generate $run/export --prompt "Behold" --temperature 0.9 --seed 2
  Train a longer run     $program train $config run_dir=$run-long training.steps=$((steps * 2))
  See its batches        $program data show $config
  See a step's program   $program plan $config
  Plan a huge model      $program plan --preset llama3-405b
  Use your own text      make demo FILE=my.txt
  Run the tests          make test
END
}

# Ctrl-C also reaches the trainer, which saves a checkpoint and ends.
on_interrupt() {
  if [ -n "$trainer" ]; then wait "$trainer" || true; fi
  printf '\nInterrupted. Continue with: %s train %s\n' "$program" "$config"
  exit 130
}

began=$SECONDS
scripts/setup.sh build demo
scripts/build.sh
mkdir -p runs
trap on_interrupt INT
move_old_run
prepare_text
write_config
train_and_kill
resume
export_and_generate
what_next
printf '\n%sDone in %d min %02d s.%s The plot: %s\n' "$green" $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$plain" "$run/plot.svg"
