# Sourced by ../containers.sh: what the containers are made of.
# shellcheck shell=bash disable=SC2154

# Says how every container is started: resources, capabilities, which of this machine's folders it sees.
limit() {
    local files processes memory_kb
    files=$(ulimit -Hn) processes=$(ulimit -Hu)
    # engines ask for more than some roots may have
    [ "$processes" != unlimited ] && [ "$processes" -lt 32768 ] || processes=32768
    options=(--rm --label "$tag" --stop-timeout 0 --log-driver none --pids-limit -1 --workdir "$PWD"
        --ulimit "nofile=$files:$files" --ulimit "nproc=$processes:$processes"
        --cap-add SYS_NICE # else the engine's filter denies mbind and move_pages
        --security-opt label=disable --volume "$(dirname "$here"):$(dirname "$here")")
    [ "$PWD" = "$(dirname "$here")" ] || options+=(--volume "$PWD:$PWD")
    if [ -n "$share" ]; then
        mkdir "/dev/shm/$tag"
        chmod 1777 "/dev/shm/$tag"
        options+=(--volume "/dev/shm/$tag:/dev/shm")
    else
        # as large as a machine's own; MPI fills the 64 MB that engines give
        memory_kb=$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)
        options+=(--shm-size "$((memory_kb / 2))k")
    fi
    system=(--pull never "$image")
    [ -n "$image" ] || system=(--rootfs /:O) # what is written there is kept apart, and dropped
}

# Starts one container to see that it does, and asks there which CPUs and NUMA nodes each is to have.
probe() {
    local said cpus nodes
    ask=("${options[@]}" --network none --env "PATH=$PATH" --env PYTHONPATH "${system[@]}"
        python -m psframe.memory.quadrants "$count")
    if ! "${engine[@]}" run "${ask[@]}" >"$folder/parts" 2>"$folder/said"; then
        said=$(head -n 1 "$folder/said")
        # crun wants cgroups of one version, runc takes a mixture
        if [ "${engine[0]}" = docker ] || ! command -v runc >/dev/null ||
            ! podman --runtime runc run "${ask[@]}" >"$folder/parts" 2>"$folder/said"; then
            refuse "${engine[0]} must start a container that has psframe's python, got '$said'; see docs/how-to/containers.md"
        fi
        engine+=(--runtime runc)
    fi
    bound=("") prefix=("") # of each container, from 1 on
    while read -r cpus nodes; do
        bound+=("--cpuset-cpus $cpus --cpuset-mems $nodes")
        prefix+=("taskset --cpu-list $cpus")
    done <"$folder/parts"
    # shellcheck disable=SC2086 # they are words
    if [ "${#bound[@]}" = 1 ] ||
        "${engine[@]}" run "${options[@]}" --network none ${bound[1]:-} "${system[@]}" true >"$folder/said" 2>&1; then
        prefix=("")
    else
        said=$(head -n 1 "$folder/said")
        echo "psframe: ${engine[0]} gives no cpusets ('$said'), so containers are bound by taskset, to CPUs alone" >&2
        bound=("")
    fi
}

# Makes a network in a namespace of its own, which no other network sees: mpirun is 10.77.0.254, containers from .1 on.
network() {
    local number
    {
        ip netns add "$tag" && ip -n "$tag" link set lo up && ip -n "$tag" link add name br0 type bridge &&
            ip -n "$tag" addr add 10.77.0.254/24 dev br0 && ip -n "$tag" link set br0 up
        for number in $(seq "$count"); do host "$number" || break; done
    } >"$folder/said" 2>&1 || true
    [ ! -s "$folder/said" ] ||
        refuse "a bridge between networks must be allowed, got '$(head -n 1 "$folder/said")'; ask who runs the machine"
}

host() {
    local name=$tag-$1 pid
    if [ "${engine[0]}" = docker ]; then # it cannot enter a namespace by name, only a container's
        docker run --detach "${options[@]}" --network none --name "$name" "${system[@]}" sleep infinity >/dev/null &&
            pid=$(docker inspect --format '{{.State.Pid}}' "$name") && ip netns attach "$name" "$pid"
    else
        ip netns add "$name"
    fi && ip -n "$tag" link add "h$1" type veth peer name eth0 netns "$name" &&
        ip -n "$tag" link set "h$1" master br0 up &&
        ip -n "$name" link set lo up &&
        ip -n "$name" addr add "10.77.0.$1/24" dev eth0 && ip -n "$name" link set eth0 up
}

# Leaves what mpirun and agent need to know.
settings() {
    local networks=ns:/run/netns/$tag
    [ "${engine[0]}" = podman ] || networks=container:$tag
    declare -p count engine options system bound prefix mpirun tag networks >"$folder/settings"
}
