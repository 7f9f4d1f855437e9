#!/usr/bin/env bash
# Run a command whose `mpirun -n N` spreads the N ranks over containers on this machine: docs/how-to/containers.md
# shellcheck source-path=SCRIPTDIR disable=SC2034,SC2317 # used in what is sourced; called by a trap
set -euo pipefail

usage="bash launch/containers.sh [-c 4] [--share-ipc] [--engine podman|docker] [--image NAME] COMMAND...

Runs COMMAND here, with an mpirun (MPICH's) on PATH that spreads its ranks over containers.
  -c N[,N...]    how many containers, 1 to 64, or 0 for none (default: 4); of several numbers, one after the other
  --share-ipc    one /dev/shm for all of them, through which ranks share memory
  --engine E     podman or docker (default: podman where there is one)
  --image NAME   what the containers hold, as built from launch/Containerfile (default: this machine's files; podman)
Example: bash launch/containers.sh -c 2 mpirun -n 4 python -m psframe.train configs/quickstart.yaml"

refuse() {
    echo "psframe: $*" >&2
    exit 2
}

# Runs the command over each number of containers, or without any; one that fails ends it.
in_turn() {
    local number child=""
    # with a status of its own for each, as when it runs once
    for number in INT:130 TERM:143 HUP:143; do
        # shellcheck disable=SC2064 # it is this number now
        trap "[ -z \"\$child\" ] || kill -TERM \"\$child\"; wait; exit ${number#*:}" "${number%:*}"
    done
    for number in ${count//,/ }; do
        if [ "$number" = 0 ]; then "$@" & else bash "$0" -c "$number" ${options[@]+"${options[@]}"} "$@" & fi </dev/null
        child=$!
        wait "$child" || exit
    done
    exit
}

count=4 share="" engine="" image=""
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) echo "$usage" && exit ;;
        --share-ipc) share=yes && shift ;;
        -c | --engine | --image)
            [ $# -gt 1 ] || refuse "$1 must have a value, got none; give one (-h tells which)"
            case $1 in -c) count=$2 ;; --engine) engine=$2 ;; --image) image=$2 ;; esac
            shift 2 ;;
        --) shift && break ;;
        -*) refuse "options must be ones that -h tells, got '$1'; leave it out" ;;
        *) break ;;
    esac
done
[[ $count =~ ^(0|[1-9]|[1-5][0-9]|6[0-4])(,([0-9]|[1-5][0-9]|6[0-4]))*$ ]] ||
    refuse "-c must be numbers of containers, 0 to 64, got '$count'; give -c 2, or -c 0,1,2,4"
[[ $engine =~ ^(podman|docker)?$ ]] ||
    refuse "--engine must be podman or docker, got '$engine'; give one of these"
[ $# -gt 0 ] || refuse "a command must follow the options, got none; give one (-h shows how)"
command -v "$1" >/dev/null || refuse "the command must be on PATH, got '$1', which is not; check it"

if [[ $count = 0 || $count = *,* ]]; then
    options=(${share:+--share-ipc} ${engine:+--engine "$engine"} ${image:+--image "$image"})
    in_turn "$@"
fi

[ "$(id -u)" = 0 ] || refuse "containers with networks of their own must be made by root, got user $(id -u); use sudo"
for needed in ip nsenter flock; do
    command -v "$needed" >/dev/null ||
        refuse "$needed must be on PATH, got none; install it (Debian: iproute2 util-linux)"
done
if [ -z "$engine" ]; then
    if command -v podman >/dev/null; then engine=podman; elif command -v docker >/dev/null; then engine=docker; fi
    [ -n "$engine" ] || refuse "podman or docker must be on PATH, got neither; install one (Debian: podman)"
fi
command -v "$engine" >/dev/null || refuse "--engine $engine must be on PATH, got none; install it (Debian: $engine)"
if [ "$engine" = docker ]; then
    said=$(docker version 2>&1 >/dev/null) ||
        refuse "docker's daemon must answer, got '${said%%$'\n'*}'; start it, or use podman"
    [ -n "$image" ] ||
        refuse "docker must have an --image, got none; build one from launch/Containerfile, or take podman"
fi
command -v python >/dev/null || refuse "psframe's python must be on PATH, got none; activate its environment first"
mpirun=$(command -v mpirun) ||
    refuse "an mpirun must be on PATH, got none; activate an environment with the mpich wheel"
version=$("$mpirun" --version 2>&1) || true
[[ $version == *HYDRA* ]] ||
    refuse "mpirun must be MPICH's, got '${version%%$'\n'*}'; activate an environment with the mpich wheel"

tag=psframe-$$ # of everything that is made here; a process's number is nobody else's meanwhile
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
child=""
engine=("$engine")

containers() { "${engine[@]}" ps --all --quiet --filter "label=$tag"; }
remove() { containers | xargs --no-run-if-empty "${engine[0]}" rm --force --volumes; }

# Ends what still runs and removes what was made. Commands hold a lock as long as they run, so that nothing polls.
cleanup() {
    trap '' INT TERM HUP
    set +e
    {
        [ -z "$child" ] || kill -TERM -- "-$child"
        ip netns pids "$tag" | xargs --no-run-if-empty kill -TERM # an mpirun may be in a session of its own
        remove
        exec 9>"$folder/lock"
        if ! flock --wait 10 9; then
            [ -z "$child" ] || kill -KILL -- "-$child"
            ip netns pids "$tag" | xargs --no-run-if-empty kill -KILL
            remove
        fi
        remove # whose network another one was on is kept until that has gone
        for number in $(seq "$count"); do ip netns del "$tag-$number"; done
        ip netns del "$tag" # and with it the bridge
        rm -rf "$folder" "/dev/shm/$tag"
    } >/dev/null 2>&1
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# shellcheck source=containers/make.sh
source "$here/containers/make.sh"
limit
probe
network
settings

export PSFRAME_N_CONTAINERS=$count PSFRAME_SHARE_IPC=$share
export PSFRAME_CONTAINERS=$folder PATH="$here/containers:$PATH" PSFRAME_MPIRUN="$here/containers/mpirun"
set -m # a group of its own, which can be ended as one
{ flock --shared 9 && exec "$@"; } 9>"$folder/lock" </dev/null &
child=$!
set +m
status=0
wait "$child" || status=$?
exit "$status"
