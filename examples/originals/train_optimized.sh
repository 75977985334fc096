#!/bin/sh
# All three stages of imitation learning with one command, with the flags of the original script:
#
#     sh examples/originals/train_optimized.sh
#     sh examples/originals/train_optimized.sh --episodes 100 --workers 4 --epochs 50 --timesteps 100000 --envs 4
#
# Runs `hotloop train imitate --preset auto`: it looks at the machine, chooses settings and says why, measures
# what they gain, trains, and compares the speed-up with the prediction. Flags override what it chooses.
case " $* " in
*" --preset"* | *" --tuned"* | *" --resume "*) ;;
*) set -- --preset auto "$@" ;;
esac
exec "${PYTHON:-python3}" "$(dirname "$0")/_translate.py" imitate "$@"
