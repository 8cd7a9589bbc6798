#!/usr/bin/env bash
# From raw text to a model that writes: sets up, builds, trains a small model on a book in some minutes, kills the training on
# purpose, resumes it, exports a Hugging Face folder and lets it write. Every command is shown before it runs.
#
#   scripts/demo.sh [FILE]       FILE: a text of yours instead of the King James Bible
set -euo pipefail
given=${1:+$(realpath -- "$1")}
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

run=runs/demo
text=runs/demo-text.txt
config=runs/demo.toml
steps=${STEPFORGE_DEMO_STEPS:-800}
[ "$steps" -ge 10 ] || die "STEPFORGE_DEMO_STEPS=$steps: at least 10"
log_every=$(((steps + 49) / 50))
checkpoint_every=$((steps / 10))
# Between two checkpoints, so that the resumed run has steps to repeat.
kill_at=$((checkpoint_every * 3 + checkpoint_every / 2))
trainer=

title() { printf '\n%s%s%s\n' "$blue" "$*" "$plain"; }
tell() { printf '%s\n' "$*"; }
show() { printf '%s$ %s%s\n' "$dim" "$*" "$plain"; }
run_shown() {
  local word words=()
  for word in "$@"; do
    case $word in *" "*) words+=("\"$word\"") ;; *) words+=("$word") ;; esac
  done
  show "${words[*]}"
  "$@"
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
  wc -c <"$text" | awk '{ printf "%.1f MB of text:\n", $1 / 1e6 }'
  head -c 300 "$text" | head -n 3 | sed "s/^/    $dim/; s/\$/$plain/"
}

# A share of the paragraphs is held out for validation, if the text is long enough to spare it.
choose_validation() {
  local bytes paragraphs
  bytes=$(wc -c <"$text")
  paragraphs=$(awk 'BEGIN { RS = "" } END { print NR }' "$text")
  [ "$bytes" -ge 2000 ] || die "$given is too short to learn from: $bytes bytes; some hundred kilobytes are a good start"
  if [ "$bytes" -ge 400000 ] && [ "$paragraphs" -ge 500 ]; then
    held_out=0.02 validate_every=$((steps / 4))
  else
    held_out=0.0 validate_every=0
  fi
}

write_config() {
  choose_validation
  cat >"$config" <<END
# Written by \`make demo\`; \`stepforge config schema\` explains every field.
preset = "demo"
run_dir = "$run"

[data]
sources = [{ path = "$text" }]
document = "paragraph"
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
log_freq = $log_every
END
  title "2. The run: a preset and what differs from it, in $config"
  sed "s/^/    /" "$config"
}

# Only a folder that an earlier demo made is removed.
clear_old_run() {
  if [ -e "$run" ]; then
    [ -e "$run/.made-by-demo" ] || die "$run exists and was not made by the demo: move it away, then run the demo again"
    rm -rf "$run"
  fi
  mkdir -p "$run"
  touch "$run/.made-by-demo"
}

last_step() {
  { tail -n 1 "$run/metrics.jsonl" 2>/dev/null || true; } | sed -n 's/.*"step":\([0-9]*\).*/\1/p'
}

train_and_kill() {
  title "3. Training, with a disaster planned at step $kill_at"
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
  # The trainer had no time to take its status line away.
  if [ -t 1 ]; then printf '\r\033[K'; fi
  printf '\n%s    kill -9  %s at step %s: no warning, no clean-up, as if the plug had been pulled.\n\n' "$red" "$plain" "$step"
}

resume() {
  title "4. The same command again: it finds its last complete checkpoint and goes on from there, bit for bit"
  show "$program train $config"
  "$program" train "$config" &
  trainer=$!
  wait "$trainer" || die "training failed"
  trainer=
}

export_and_write() {
  title "5. Export: a folder that Hugging Face transformers loads as it is"
  run_shown "$program" export "$run" "$run/export"
  (cd "$run/export" && stat -c '    %-28n %10s bytes' ./*)

  title "6. The exported model writes"
  run_shown "$program" generate "$run/export" --prompt "$prompt" --max-tokens 150 --temperature 0.7 --seed 1

  title "7. Loss, gradient norm, learning rate and speed as a picture"
  run_shown "$program" plot "$run" --output "$run/plot.svg"
}

what_next() {
  title "What to type next"
  cat <<END
  Let it write more      $program generate $run/export --prompt "Behold" --temperature 0.9 --seed 2
  Train it longer        $program train $config training.steps=$((steps * 2))
  See what it was fed    $program data show $config
  See a step's program   $program plan $config
  Plan a giant           $program plan --preset llama3-405b
  Use your own text      make demo FILE=my.txt
  Run the tests          make test
END
}

# Ctrl-C reaches the trainer too, which saves and ends by itself.
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
prepare_text
write_config
clear_old_run
train_and_kill
resume
export_and_write
what_next
printf '\n%sDone in %d min %02d s.%s The picture: %s\n' "$green" $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$plain" "$run/plot.svg"
