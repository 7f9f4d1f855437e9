"""Describes a Knights Landing to QEMU: its CPU, and its memory in each of the modes that it can be started in."""

from dataclasses import dataclass

#: MCDRAM beside DDR, both in quarters; both whole; MCDRAM as a cache in front of DDR; and another machine: two sockets
#: with slow memory beside each, as over CXL
MODES = ("SNC-4", "quadrant", "cache", "CXL")

CPUS = 8

Speeds = tuple[tuple[int, int], tuple[int, int]]

# latency in ns and bandwidth in GB/s, near those measured on the hardware: from the own quarter, from another one
DDR = ((130, 90), (140, 80))
MCDRAM = ((150, 400), (170, 300))
FAR = ((250, 30), (350, 25))
#: of the SLIT: from a node with CPUs to the memory beside it, and to that of others
MCDRAM_DISTANCES, FAR_DISTANCES = (31, 41), (50, 60)


@dataclass(frozen=True)
class Memory:
    """What the whole machine has, in MiB; SNC-4 deals both out in quarters.

    Attributes
    ----------
    ddr, mcdram : int
        MiB. In cache mode MCDRAM is no memory of its own; in mode CXL it stands for the slow memory.
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
    quarters, flat = {"SNC-4": 4, "CXL": 2}.get(mode, 1), mode != "cache"
    beside, distances = (FAR, FAR_DISTANCES) if mode == "CXL" else (MCDRAM, MCDRAM_DISTANCES)
    sizes = [memory.ddr // quarters] * quarters + [memory.mcdram // quarters] * quarters * flat
    numa = [*_nodes(quarters, len(sizes), memory.hmat), *_distances(quarters, len(sizes), distances)]
    if memory.hmat:
        numa += _speeds(quarters, len(sizes), beside)
        if not flat:
            cache = "level=1,associativity=direct,policy=write-back,line=64"
            numa.append(f"hmat-cache,node-id=0,size={memory.mcdram}M,{cache}")
    return [
        *("-machine", f"q35,hmat={'on' if memory.hmat else 'off'}", "-smp", f"{CPUS},sockets=1,cores={CPUS}"),
        # Knights Mill has another model number and a few more instructions; QEMU emulates no AVX-512, and warns unless
        # told not to check
        *("-cpu", "KnightsMill,model=0x57,check=off", "-m", f"{sum(sizes)}M"),
        *(word for i, size in enumerate(sizes) for word in ("-object", f"memory-backend-ram,id=ram{i},size={size}M")),
        *(word for option in numa for word in ("-numa", option)),
    ]


def _nodes(quarters: int, nodes: int, hmat: bool) -> list[str]:
    """Nodes of CPUs with DDR first, then those of MCDRAM, as on the hardware."""
    share = CPUS // quarters
    cpus = [f"cpus={q * share}-{(q + 1) * share - 1}" for q in range(quarters)]
    options = [f"node,nodeid={q},memdev=ram{q},{cpus[q]}" for q in range(quarters)]
    for node in range(quarters, nodes):
        options.append(f"node,nodeid={node},memdev=ram{node}" + f",initiator={node - quarters}" * hmat)
    return options


def _speeds(quarters: int, nodes: int, beside: Speeds) -> list[str]:
    """The Heterogeneous Memory Attribute Table, from each node with CPUs to each node."""
    options = []
    for cpu in range(quarters):
        for node in range(nodes):
            kind = DDR if node < quarters else beside
            latency, bandwidth = kind[0 if node % quarters == cpu else 1]
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
