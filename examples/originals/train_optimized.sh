#!/bin/sh
# All three stages of imitation learning with one command, with the flags of the original script:
#
#     sh examples/originals/train_optimized.sh --episodes 100 --workers 4 --epochs 50 --timesteps 100000 --envs 4
#
# Runs `hotloop train imitate`; without flags, with the preset `quick`.
if [ $# -eq 0 ]; then
    set -- --preset quick
fi
exec "${PYTHON:-python3}" "$(dirname "$0")/_translate.py" imitate "$@"
