#!/usr/bin/env bash
# Run a command whose `mpirun -n N` spreads the N ranks over hosts that ssh reaches: docs/tutorials/cluster.md.
set -eo pipefail # without -u, under which bash before 4.4 takes an empty array for none

usage="bash launch/hosts.sh [--agent AGENT] [--timeout S] HOSTFILE COMMAND...

Runs COMMAND here, which is mpirun, or a command of psframe that starts it, over the hosts; and prints what it runs.
  HOSTFILE       a host a line, and how many ranks it takes: 'node1:64' or 'node1 slots=64'; without, as many as it has cores
  --agent AGENT  what starts a command on a host, as ssh does: 'AGENT [-x] HOST COMMAND...' (default: ssh)
  --timeout S    seconds to wait for a host's answer (default: 30)
  MPIRUN_FLAGS   in the environment: more flags of mpirun
The first host is this one. psframe lies in the same folder on all.
Example: bash launch/hosts.sh hosts.txt mpirun -n 256 python -m psframe.train config.yaml"

refuse() {
    echo "psframe: $*" >&2
    exit 2
}

# What a host says when its psframe is imported: its cores, or nothing; why goes to a file of its name.
ask() {
    local status=0 why # the program has no quotes: the other shell may be no bash
    timeout "$patience" "${agent[@]}" -x "$1" "cd $(printf %q "$PWD") && $(printf %q "$python") -c '$look
print(len(os.sched_getaffinity(0)))'" </dev/null >"$folder/$1.cores" 2>"$folder/$1.why" || status=$?
    [ "$status" = 124 ] && why="no answer within $patience s" || why="no word, and exit status $status"
    [ -s "$folder/$1.why" ] || echo "$why" >"$folder/$1.why"
}

# The hosts with their ranks, as a:2,b:2; what is wrong with the file, or with a host, ends this.
spread() {
    local line host ranks every=() found=()
    while read -r line || [ -n "$line" ]; do
        line=${line%%#*}
        [[ $line =~ ^[[:space:]]*$ ]] && continue
        [[ $line =~ ^[[:space:]]*([A-Za-z0-9][A-Za-z0-9._-]*)(:([1-9][0-9]*)|[[:space:]]+slots=([1-9][0-9]*))?[[:space:]]*$ ]] ||
            refuse "a line of $hostfile must be HOST, HOST:RANKS or HOST slots=RANKS, got '$line'; mend it"
        host=${BASH_REMATCH[1]} ranks=${BASH_REMATCH[3]}${BASH_REMATCH[4]}
        [[ " ${every[*]%%:*} " != *" $host "* ]] || refuse "a host must stand in $hostfile once, got $host twice; add its ranks up"
        every+=("$host:$ranks")
        ask "$host" &
    done <"$hostfile"
    wait
    [ ${#every[@]} -gt 0 ] || refuse "$hostfile must name a host, got none; give one a line"
    for line in "${every[@]}"; do
        host=${line%%:*} ranks=${line#*:}
        [ -s "$folder/$host.cores" ] ||
            refuse "every host must be reached by '${agent[*]}' and have psframe as this one has, got from $host:" \
                "$(tail -n 1 "$folder/$host.why"); mend that, or take it out of $hostfile"
        found+=("$host:${ranks:-$(<"$folder/$host.cores")}")
    done
    (IFS=, && echo "${found[*]}")
}

options=(-o BatchMode=yes -o ConnectTimeout=10) # of ssh: nobody is asked, and a host that is gone is not waited for
agent=(ssh "${options[@]}") given="" patience=30
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) echo "$usage" && exit ;;
        --agent)
            [ $# -gt 1 ] || refuse "--agent must have a value, got none; give one, as --agent ssh"
            command -v "$2" >/dev/null || refuse "--agent must be a program, got '$2'; check it"
            given=$(command -v "$2") agent=("$given") && shift 2 ;;
        --timeout)
            [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || refuse "--timeout must be whole seconds, 1 or more, got '${2:-}'; give 30"
            patience=$2 && shift 2 ;;
        -*) refuse "options must be ones that -h tells, got '$1'; leave it out" ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || refuse "a hostfile must be given, got none (-h shows how)"
hostfile=$1 && shift
[[ -r $hostfile && -f $hostfile ]] || refuse "the hostfile must be a readable file, got '$hostfile'; check it"
[ $# -gt 0 ] || refuse "a command must follow the hostfile, got none; give one (-h shows how)"
mpirun=$(command -v mpirun) || refuse "an mpirun must be on PATH, got none; activate psframe's environment"
command -v "$1" >/dev/null || refuse "the command must be on PATH, got '$1', which is not; check it"
python=$(command -v python) || refuse "a python with psframe must be on PATH, got none; activate its environment"
look='import os, h5py, mpi4py, numba
from psframe.config import schema
mpi4py.rc.initialize = False # the library is to be there, and not to start
from mpi4py import MPI'
why=$("$python" -c "$look" 2>&1) ||
    refuse "the python on PATH must have psframe, got $python with ${why##*$'\n'}; activate its environment, and leave a folder" \
        "that has a folder psframe"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
spread=$(spread)
[ -n "$given" ] || export HYDRA_LAUNCHER_EXTRA_ARGS="${options[*]}" PRTE_MCA_plm_ssh_args="${options[*]}"
if "$mpirun" --version 2>&1 | grep "Open MPI" >/dev/null; then
    # without a policy it may map all ranks to one host that may be oversubscribed; and ssh takes no environment along
    start=("$mpirun" ${given:+--mca plm_ssh_agent "$given"} --host "$spread" --prtemca rmaps_default_mapping_policy slot)
    for name in PATH PYTHONPATH VIRTUAL_ENV {OMP,OPENBLAS,MKL,NUMBA}_NUM_THREADS NUMBA_CACHE_DIR NUMBA_CPU_{NAME,FEATURES} \
        MEMKIND_HBW_NODES; do
        [ -z "${!name+set}" ] || start+=(-x "$name")
    done
else
    start=("$mpirun" -launcher ssh ${given:+-launcher-exec "$given"} -hosts "$spread")
fi
read -ra more <<<"${MPIRUN_FLAGS:-}"
start+=("${more[@]}")
rm -rf "$folder"
printf -v PSFRAME_MPIRUN '%q ' "${start[@]}"
export PSFRAME_MPIRUN # which commands of psframe start
if [ "${1##*/}" = mpirun ]; then
    set -- "${start[@]}" "${@:2}"
else
    echo "+ PSFRAME_MPIRUN='${start[*]}'" >&2
fi
echo "+ $*" >&2
exec "$@"
