#!/bin/sh
# All three stages with one command, as in the original:
#
#     sh examples/originals/train_optimized.sh --episodes 100 --workers 4 --epochs 50 --timesteps 100000 --envs 4
#
# It runs `hotloop train imitate`; without flags it takes the preset `quick`.
if [ $# -eq 0 ]; then
    set -- --preset quick
fi
exec "${PYTHON:-python3}" -m hotloop train imitate "$@"
