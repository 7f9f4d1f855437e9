#!/usr/bin/env bash
# Install psframe into .venv and train LeNet on real digits: one parameter server and three workers.
#   bash launch/quickstart.sh [key.path=value ...]
source "$(dirname "$0")/env.sh"
environment .venv mpich mlxtend
set -x
exec .venv/bin/mpirun -n 4 .venv/bin/python -m psframe.train configs/quickstart.yaml "$@"
