# Sourced by the other scripts: makes virtual environments for psframe, each with a whole MPI from the package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# exits 0 under Python 3.10 or newer with venv and the headers that extensions are compiled with
usable='
import os, sys, sysconfig, venv, ensurepip
sys.exit(sys.version_info < (3, 10) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'

find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3; do
        if "$candidate" -c "$usable" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "psframe needs Python 3.10 or newer with venv and its C headers, and found none; install it" \
        "(Debian: python3-venv python3-dev)" >&2
    return 1
}

# environment FOLDER EXTRAS [PACKAGE ...]: install psframe[EXTRAS], editable, into FOLDER, and the packages that follow
# without what they would pull in; nothing is done if that was done from the same sources before.
environment() {
    local folder=$1 extras=$2 done_file sources python
    shift 2
    done_file=$folder/psframe-$(echo "$extras $*" | tr -c 'a-zA-Z0-9.\n' -)
    sources=$(cat pyproject.toml setup.py psframe/compiled/*.{pyx,pxd,h} | cksum)
    if [ "$(cat "$done_file" 2>/dev/null)" = "$sources" ]; then
        return
    fi
    if ! command -v cc >/dev/null && ! command -v gcc >/dev/null; then
        echo "psframe compiles its extensions with a C compiler, and found none; install it (Debian: gcc libc6-dev)" >&2
        return 1
    fi
    python=$(find_python)
    echo "installing psframe[$extras] into $folder" >&2
    [ -x "$folder/bin/pip" ] || "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
    [ $# = 0 ] || "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@"
    echo "$sources" >"$done_file"
}
