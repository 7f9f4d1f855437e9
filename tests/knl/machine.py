"""Describes machines to QEMU: a Knights Landing in each of its modes, and others with memory of several kinds."""

from dataclasses import dataclass

CPUS = 8

Speeds = tuple[tuple[int, int], tuple[int, int]]

# latency in ns and bandwidth in GB/s, near those measured on the hardware: from the own quarter, from another one
DDR = ((130, 90), (140, 80))
MCDRAM = ((150, 400), (170, 300))
FAR = ((250, 30), (350, 25))
#: of the SLIT: from a node with CPUs to the memory beside it, and to that of others
MCDRAM_DISTANCES, FAR_DISTANCES = (31, 41), (50, 60)

# Knights Mill has another model number and a few more instructions; QEMU emulates no AVX-512, and warns unless told
# not to check. What a Xeon Max has more is not emulated either: the name alone tells it.
KNL = "KnightsMill,model=0x57,check=off"
MAX = "KnightsMill,model=0x8f,check=off,model-id=Intel(R) Xeon(R) CPU Max 9480"


@dataclass(frozen=True)
class Machine:
    """A machine in one of its modes.

    Attributes
    ----------
    domains : int
        Nodes with CPUs, among which all memory is divided.
    home, beside : tuple
        Speeds of the memory of nodes with CPUs, and of nodes of memory alone, one for each of the former; None
        without those.
    distances : tuple of int
        SLIT distances to memory alone.
    has_cache : bool
        True if the second kind of memory is a cache in front of the first.
    cpu : str
    """

    domains: int
    beside: Speeds | None = MCDRAM
    home: Speeds = DDR
    distances: tuple[int, int] = MCDRAM_DISTANCES
    has_cache: bool = False
    cpu: str = KNL


#: a Knights Landing with MCDRAM beside DDR in quarters, whole, and as a cache; two sockets with slow memory beside
#: each, as over CXL; a Xeon Max in quarters, with HBM beside each, and with HBM alone
MODES = {
    "SNC-4": Machine(4),
    "quadrant": Machine(1),
    "cache": Machine(1, None, has_cache=True),
    "CXL": Machine(2, FAR, distances=FAR_DISTANCES),
    "Max": Machine(4, cpu=MAX),
    "HBM-only": Machine(4, None, home=MCDRAM, cpu=MAX),
}


@dataclass(frozen=True)
class Memory:
    """What the whole machine has, in MiB.

    Attributes
    ----------
    ddr, mcdram : int
        MiB: memory of the nodes with CPUs, which is HBM in mode HBM-only, and of the others.
    hmat : bool
        Whether firmware tells of speeds, and in cache mode of the cache, by an ACPI HMAT. The hardware's does not,
        being older than that table, and leaves it at the distances; newer machines with such memory do.
    """

    ddr: int = 3072
    mcdram: int = 1024
    hmat: bool = True


#: enough for a few ranks
DEFAULT = Memory()


def arguments(mode: str, memory: Memory) -> list[str]:
    """Return the options of QEMU that make the machine.

    Raises
    ------
    ValueError
        If ``mode`` is not one of `MODES`.
    """
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    machine = MODES[mode]
    domains = machine.domains
    sizes = [memory.ddr // domains] * domains + [memory.mcdram // domains] * domains * bool(machine.beside)
    numa = [*_nodes(domains, len(sizes), memory.hmat), *_distances(domains, len(sizes), machine.distances)]
    if memory.hmat:
        numa += _speeds(machine, len(sizes))
        if machine.has_cache:
            cache = "level=1,associativity=direct,policy=write-back,line=64"
            numa.append(f"hmat-cache,node-id=0,size={memory.mcdram}M,{cache}")
    return [
        *("-machine", f"q35,hmat={'on' if memory.hmat else 'off'}", "-smp", f"{CPUS},sockets=1,cores={CPUS}"),
        *("-cpu", machine.cpu, "-m", f"{sum(sizes)}M"),
        *(word for i, size in enumerate(sizes) for word in ("-object", f"memory-backend-ram,id=ram{i},size={size}M")),
        *(word for option in numa for word in ("-numa", option)),
    ]


def _nodes(quarters: int, nodes: int, hmat: bool) -> list[str]:
    """Nodes of CPUs first, then those of memory alone, as on the hardware."""
    share = CPUS // quarters
    cpus = [f"cpus={q * share}-{(q + 1) * share - 1}" for q in range(quarters)]
    options = [f"node,nodeid={q},memdev=ram{q},{cpus[q]}" for q in range(quarters)]
    for node in range(quarters, nodes):
        options.append(f"node,nodeid={node},memdev=ram{node}" + f",initiator={node - quarters}" * hmat)
    return options


def _speeds(machine: Machine, nodes: int) -> list[str]:
    """The Heterogeneous Memory Attribute Table, from each node with CPUs to each node."""
    options = []
    for cpu in range(machine.domains):
        for node in range(nodes):
            kind = machine.home if node < machine.domains or machine.beside is None else machine.beside
            latency, bandwidth = kind[0 if node % machine.domains == cpu else 1]
            path = f"hmat-lb,initiator={cpu},target={node},hierarchy=memory"
            options.append(f"{path},data-type=access-latency,latency={latency}")
            options.append(f"{path},data-type=access-bandwidth,bandwidth={bandwidth}G")
    return options


def _distances(quarters: int, nodes: int, beside: tuple[int, int]) -> list[str]:
    """The hardware's SLIT, by which older software tells MCDRAM from DDR."""
    options = []
    for a in range(nodes):
        for b in range(a + 1, nodes):
            to_other = beside[0] if b - quarters == a else beside[1]
            options.append(f"dist,src={a},dst={b},val={21 if b < quarters else to_other}")
    return options
