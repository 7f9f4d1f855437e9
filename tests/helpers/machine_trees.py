"""Trees of /sys and /proc as Linux writes them for machines that are not at hand."""

from dataclasses import dataclass

from psframe.memory.sysfs import parse_list, spell

NODES = "sys/devices/system/node"
CPUS = "sys/devices/system/cpu"
MIB_KIB = 1024
GIB = 1 << 30

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: {name}\n\n"
XEON = INTEL.format(model=106, name="Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz")
KNL = INTEL.format(model=87, name="Intel(R) Xeon Phi(TM) CPU 7210 @ 1.30GHz")
MAX = INTEL.format(model=143, name="Intel(R) Xeon(R) CPU Max 9480")
A64FX = "processor\t: 0\nCPU implementer\t: 0x46\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0x001\n\n"
MI300A = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD Instinct MI300A Accelerator\n\n"


@dataclass
class Memory:
    """A node to be: its CPUs as a list, its memory, and what the HMAT says: MB/s, ns, ``{access: initiators}``."""

    cpus: str = ""
    gib: float = 16
    free_gib: float | None = None
    bandwidth: int | None = None
    latency: int = 100
    access: dict[int, tuple[int, ...]] | None = None
    side_cache: int = 0


def hmat(bandwidth, *initiators, cpus="", access=0, gib=16.0):
    """Return a node with a bandwidth (MB/s) from its best initiators."""
    return Memory(cpus, gib, bandwidth=bandwidth, access={access: initiators})


def put(root, place, text):
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def mask_of(cpus):
    """Return CPUs as the kernel writes a mask: words of 32 bits, the highest first."""
    bits = sum(1 << cpu for cpu in cpus)
    n_words = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"{bits >> 32 * word & (1 << 32) - 1:08x}" for word in reversed(range(n_words)))


def memory_of(gib, free_gib, prefix=""):
    kib = {"MemTotal": gib, "MemFree": gib / 2 if free_gib is None else free_gib, "Active(file)": 0, "SReclaimable": 0}
    return "\n".join(f"{prefix}{name}: {int(amount * 1024 * MIB_KIB):15} kB" for name, amount in kib.items())


def put_cpus(root, online, threads=1, packages=1, offline="", cpuinfo=XEON):
    """Write CPUs of which a core's hardware threads are n/threads apart, package after package."""
    online, offline = parse_list(online), parse_list(offline)
    n = len(online) + len(offline)
    n_cores = n // threads
    package_of = {cpu: cpu % n_cores * packages // n_cores for cpu in online}
    for cpu in online:
        core = cpu % n_cores
        place = f"{CPUS}/cpu{cpu}/topology"
        siblings = {
            "thread_siblings": [core + i * n_cores for i in range(threads) if core + i * n_cores in online],
            "core_siblings": [other for other in online if package_of[other] == package_of[cpu]],
        }
        for name, cpus in siblings.items():
            put(root, f"{place}/{name}_list", spell(cpus))
            put(root, f"{place}/{name}", mask_of(cpus))
        put(root, f"{place}/physical_package_id", package_of[cpu])
        put(root, f"{place}/core_id", core)
    for cpu in offline:
        put(root, f"{CPUS}/cpu{cpu}/online", 0)
    put(root, f"{CPUS}/online", spell(online))
    put(root, f"{CPUS}/offline", spell(offline))
    put(root, f"{CPUS}/present", spell({*online, *offline}))
    put(root, "proc/cpuinfo", cpuinfo)


def put_node(root, number, node, distances):
    place = f"{NODES}/node{number}"
    put(root, f"{place}/cpulist", node.cpus)
    put(root, f"{place}/cpumap", mask_of(parse_list(node.cpus)))
    put(root, f"{place}/meminfo", memory_of(node.gib, node.free_gib, f"Node {number} "))
    put(root, f"{place}/distance", " ".join(map(str, distances)))
    put(root, f"{place}/hugepages/hugepages-2048kB/nr_hugepages", 8)
    put(root, f"{place}/hugepages/hugepages-2048kB/free_hugepages", 3)
    for access, initiators in (node.access or {}).items():
        folder = f"{place}/access{access}/initiators"
        for initiator in initiators:
            put(root, f"{folder}/node{initiator}", "")
        put(root, f"{folder}/read_bandwidth", node.bandwidth or 0)
        put(root, f"{folder}/read_latency", node.latency)
    if node.side_cache:
        put(root, f"{place}/memory_side_cache/index1/size", node.side_cache)


def machine(root, nodes, distances=None, allowed=None, **cpus):
    """Write a machine of nodes ``{number: Memory}``; distances default to 10 at home and 20 elsewhere."""
    online = {cpu for node in nodes.values() for cpu in parse_list(node.cpus)}
    put_cpus(root, cpus.pop("online", None) or spell(online), **cpus)
    for i, (number, node) in enumerate(nodes.items()):
        row = [10 if other == number else 20 for other in nodes] if distances is None else distances[i]
        put_node(root, number, node, row)
    for name in ("online", "possible"):
        put(root, f"{NODES}/{name}", spell(nodes))
    put(root, f"{NODES}/has_memory", spell(n for n, node in nodes.items() if node.gib))
    put(root, "proc/meminfo", memory_of(sum(node.gib for node in nodes.values()), None))
    put(root, "proc/self/status", f"Name:\tpython\nMems_allowed_list:\t{spell(nodes) if allowed is None else allowed}")
    return root


def paired(root, homes, fast, n_cores, threads, far, ddr, hbw, hmat=False, **cpus):
    """Write CPUs divided into ``homes`` nodes, each with DDR, and as many without CPUs, if ``hbw`` holds any GiB."""
    n = n_cores * threads
    nodes = {}
    for i in range(homes):
        local = [c for c in range(n) if c % n_cores * homes // n_cores == i]
        nodes[i] = Memory(spell(local), ddr / homes)
    if hbw:
        nodes |= {homes + i: Memory("", hbw / homes) for i in range(homes)}
    if hmat:
        for number, node in nodes.items():
            node.bandwidth = fast if number >= homes else fast // 4
            node.access = {0: (number % homes,), 1: (number % homes,)}
    near, other, own, others = far

    def distance(a, b):
        same = a % homes == b % homes
        return (near if same else other) if a // homes == b // homes else own if same else others

    rows = [[distance(a, b) for b in nodes] for a in nodes]
    return machine(root, nodes, rows, threads=threads, **cpus)


def knl(root, clusters=1, hbw=16.0, n_cores=16, threads=4, **more):
    """Write a Knights Landing; ``hbw=0`` for cache mode."""
    return paired(root, clusters, 400_000, n_cores, threads, (10, 21, 31, 41), 96, hbw, cpuinfo=KNL, **more)


def xeon_max(root, homes=2, packages=2, ddr=512.0, hbw=128.0, n_cores=16, threads=2, **more):
    """Write Xeon Max packages with ``homes`` nodes in all; ``hbw=0`` for cache mode."""
    far = (10, 21, 13, 23)
    return paired(root, homes, 600_000, n_cores, threads, far, ddr, hbw, cpuinfo=MAX, packages=packages, **more)
