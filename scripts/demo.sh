#!/usr/bin/env bash
# Command one: sets everything up, then trains a small BERT on real data (the standard library's
# own source) side by side: eagerly, in lockstep with all bits compared after every step, and in
# lockstep as fast as it goes.
#
#   bash scripts/demo.sh                     the sample bert_cls, 100 steps
#   bash scripts/demo.sh gpt2 --steps 30     another folder of samples/, with its options
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
export PATH="${LOCKSTEP_VENV:-$PWD/.venv}/bin:$PATH" PYTHONPATH="$PWD/python"
sample="bert_cls"
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    sample="$1"
    shift
fi
printf '\n== sample %s, eager beside lockstep\n' "$sample"
# co-execution is forced, so that the table shows it also on a machine where auto would choose eager
exec python "samples/$sample/main.py" --mode compare --when always "$@"
