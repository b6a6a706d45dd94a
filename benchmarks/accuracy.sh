#!/usr/bin/env bash
# The table of docs/accuracy.md: every recipe fitted on the same statistics and scored on text it has not seen.
#
#   benchmarks/accuracy.sh BIN MODEL WIKI_VALID WIKI_TEST GSM8K.jsonl [DEVICE] [STEPS]
#
# BIN: the built programs. The texts are WikiText-2 (valid and test) and GSM8K's test split. Calibrates on 4,096 tokens
# of each of WIKI_VALID and GSM8K's first questions, scores 4,096 tokens of WIKI_TEST and of later questions.
set -euo pipefail
bin=$1 model=$2 wiki_valid=$3 wiki_test=$4 gsm=$5 device=${6:-auto} steps=${7:-200}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

questions() {  # FIRST LAST: GSM8K as plain text
  python3 -c 'import json, sys
for line in list(open(sys.argv[1]))[int(sys.argv[2]):int(sys.argv[3])]:
    item = json.loads(line)
    print("Question: " + item["question"] + "\nAnswer: " + item["answer"] + "\n")' "$gsm" "$1" "$2"
}
questions 600 660 >"$work/gsm8k-later.txt"
common=(--sequence-length 2048 --tokens 4096 --chat-template none --device "$device" --progress none)

for seed in 1 2; do
  if ((seed == 1)); then
    cp "$wiki_valid" "$work/valid.txt"
    questions 0 60 >"$work/gsm8k.txt"
  else  # another part of both
    tail -c +400000 "$wiki_valid" >"$work/valid.txt"
    questions 100 160 >"$work/gsm8k.txt"
  fi
  for part in valid gsm8k; do
    "$bin/oscar-calibrate" "$model" --output "$work/$part-$seed" --prompts "$work/$part.txt" --samples 1024 "${common[@]}" >/dev/null
  done
  "$bin/oscar-calibrate" merge "$work/valid-$seed/statistics.h5" "$work/gsm8k-$seed/statistics.h5" --output "$work/$seed.h5" >/dev/null
  fits=()
  fit() {  # NAME OPTIONS...
    local start=$SECONDS
    "$bin/oscar-calibrate" fit "$work/$seed.h5" --output "$work/$seed-$1" --device "$device" "${@:2}" >/dev/null
    echo "fitted $1 in $((SECONDS - start)) s"
    fits+=("$work/$seed-$1")
  }
  fit reference --objective reference
  fit oscar --objective oscar
  fit ktk-vtv --objective ktk-vtv
  fit layer-offset --objective layer-offset
  fit layer-trained --objective layer-offset --train "$steps"
  fit head-offset --objective head-offset
  fit head-trained --objective head-offset --train "$steps"
  fit flat --objective flat+vtv --granularity head --composition r_o --center-keys
  fit stretch --objective stretch
  fit stretch-trained --objective stretch --train "$steps"
  for text in "$wiki_test" "$work/gsm8k-later.txt"; do
    echo "calibration $seed, scored on $(basename "$text")"
    "$bin/oscar-validate" "$model" "${fits[@]}" --prompts "$text" "${common[@]}" | grep -vE '^(Worst|Lower)'
  done
done
