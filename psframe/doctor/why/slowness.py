"""Causes that make ranks slow, in an incident (:data:`RULES`): cores, memory and disks that others use, too."""

from collections.abc import Iterator
from statistics import median

from psframe.doctor.why.cause import Cause
from psframe.doctor.why.counts import grown, grown_in_groups, most_in_a_group, nested
from psframe.doctor.why.evidence import Evidence, Rank, shown
from psframe.doctor.why.links import polls
from psframe.record import flight

THROTTLED = 0.2  # share of the time in which a cgroup had no CPU time left
DELAYED, MORE = 0.25, 4.0  # a second in which a rank could run and had no core; and times the median rank's
SLOW = 1.4  # times the median rank's time in a step
LEAST_STEPS = 8  # that must be known of a rank
LEAST_S = 2e-3  # that a step must be longer than the others': a scheduler's turn, and less, tells nothing
BESIDE_S = 5.0  # of a checkpoint beside the steps, which holds nobody up
PRESSURE = 0.2  # share of the time in which tasks waited for memory, or a disk


def throttled(evidence: Evidence) -> Iterator[Cause]:
    """The job's cgroup has used up its CPU time."""
    for host, before, after, seconds in evidence.machines():
        groups = grown_in_groups(before, after)
        group = max(groups, key=lambda group: group.get("throttled_us", 0.0), default={})
        # the kernel adds up the seconds of all cores that have something to run
        here = sum(shown(rank.host, 60) == host for rank in evidence.alive)
        cores = max(1.0, min(float(here), nested(after, "cores")))
        spent, times = group.get("throttled_us", 0.0) / 1e6 / cores, group.get("throttled", 0.0)
        if times > THROTTLED * group.get("periods", 0.0) and times > 0 and spent > THROTTLED * seconds:
            yield Cause(
                80,
                f"The cgroup of the job on {host} had no CPU time left for {spent:.1f} s of {seconds:.1f} s.",
                [f"the kernel held its processes up {times:,.0f} times"],
                "Give the job more CPUs (cpu.max, a container's --cpus, Slurm's --cpus-per-task), or fewer ranks.",
            )


def shared_cores(evidence: Evidence) -> Iterator[Cause]:
    """A rank shares its core; or all do, where something went wrong."""
    known = [rank for rank in evidence.alive if rank.process.state != "gone" and not rank.is_stopped]
    if len(known) < 2:
        return
    usual = median(rank.delayed for rank in known)
    for rank in known:
        others = [other.delayed for other in known if other is not rank]
        needed = rank.delayed - polls(rank)  # who polls for others runs only to give its core away again
        if needed > DELAYED and rank.delayed > MORE * max(median(others), 0.02):
            near = [other for other in known if other is not rank and other.host == rank.host]
            mates = [other for other in near if _core(rank) and _core(other) == _core(rank)]
            whom = f"rank {mates[0].number}" if mates else "another process"
            yield Cause(
                75,
                f"Rank {rank.number} ({shown(rank.host, 60)}) shares core {rank.process.core} with {whom}: it could "
                f"run and had no core for {rank.delayed:.0%} of the time.",
                [f"the median rank had none for {usual:.0%} of it"],
                "Find what else runs there (`top`), bind the ranks elsewhere, or leave that core out.",
            )
    if evidence.first.reason == "asked":  # more ranks than cores is a choice, and nothing went wrong
        return
    for host, _, after, _ in evidence.machines():
        cores, delays = nested(after, "cores"), [rank.delayed for rank in known if shown(rank.host, 60) == host]
        here = len(delays)
        if not cores or here <= cores or (usual := median(delays)) <= DELAYED:
            continue
        yield Cause(
            35,
            f"{here} ranks share {cores:.0f} cores: the median rank could run and had no core for {usual:.0%} of the "
            "time.",
            [],
            "Start as many ranks as cores.",
        )


def few_cores(evidence: Evidence) -> Iterator[Cause]:
    """Ranks may run on fewer cores than they are, where the machine has more."""
    for host, _, after, _ in evidence.machines():
        here = [rank for rank in evidence.alive if shown(rank.host, 60) == host and not rank.is_stopped]
        by_cores: dict[str, list[Rank]] = {}
        for rank in here:
            by_cores.setdefault(rank.process.status.get("Cpus_allowed_list", ""), []).append(rank)
        each = -(-len(here) // max(int(nested(after, "cores")), 1))  # that a core has where all may run everywhere
        for cores, ranks in by_cores.items():
            usual, n_cores = median(rank.delayed for rank in ranks), cores_in(cores)
            if not n_cores or len(ranks) <= n_cores * each or usual <= DELAYED:
                continue
            before = sorted({rank.began.get("Cpus_allowed_list", cores) for rank in ranks} - {cores})
            words = f"core{'s' * (n_cores > 1)} {shown(cores, 60)}"
            numbers = f"{', '.join(str(rank.number) for rank in ranks[:8])}{', ...' * (len(ranks) > 8)}"
            yield Cause(
                77,
                f"Ranks {numbers} ({host}) may run on {words} alone, of {nested(after, 'cores'):.0f}: the median one "
                f"could run and had no core for {usual:.0%} of the time.",
                [f"when the job began, they might run on {shown(', '.join(before), 60)}"] if before else [],
                "Give each rank a core of its own: look at mpirun's binding, `affinity`, `taskset`, and the cores of "
                "the job (Slurm, a container's --cpuset-cpus).",
            )


def cores_in(text: str) -> int:
    """Return how many cores the kernel's list of them has, as ``0-3,8``; 0 for what is none."""
    spans = [span.partition("-")[::2] for span in text.split(",")]
    if not all(first.isdecimal() and (last or first).isdecimal() and len(first + last) < 13 for first, last in spans):
        return 0
    return sum(max(int(last or first) - int(first) + 1, 0) for first, last in spans)


def _core(rank: Rank) -> str:
    """Return the only core that a rank may run on, "" if there are several."""
    allowed = rank.process.status.get("Cpus_allowed_list", "")
    return allowed if allowed.isdecimal() else ""


def short_memory(evidence: Evidence) -> Iterator[Cause]:
    """The machine, or the job, is short of memory."""
    for host, before, after, seconds in evidence.machines():
        stalled = grown(before, after, "pressure", "memory", "full") / 1e6
        of_job = grown(before, after, "cgroup", "memory_us") / 1e6
        swapped, reached = grown(before, after, "swapped", "pswpin"), most_in_a_group(before, after, "reached")
        if max(stalled, of_job) > PRESSURE * seconds or swapped > 256 * seconds:
            # the kernel takes pages from a cgroup at its limit, where the machine has enough
            is_job = of_job > PRESSURE * seconds and reached > 0
            where = f"The cgroup of the job on {host}" if is_job else f"Host {host}"
            lines = [f"{nested(after, 'memory', 'MemAvailable') / 2**20:,.0f} MiB are left on the host"]
            lines += [f"the cgroup reached its limit of memory {reached:,.0f} times"] if reached > 0 else []
            more = "Give the job more memory (memory.high and memory.max, a container's --memory, Slurm's --mem). "
            yield Cause(
                78,
                f"{where} is short of memory: its tasks waited for it for {max(stalled, of_job):.1f} s of "
                f"{seconds:.1f} s, and {swapped:,.0f} pages came back from swap.",
                lines,
                f"{more if reached > 0 else ''}Start fewer ranks, or lower train.batch_size; `--dry-run` shows what a "
                "config needs.",
            )


def slow_disk(evidence: Evidence) -> Iterator[Cause]:
    """Tasks wait for a disk, and a rank among them is held up by it, or writes for long beside its steps."""
    kinds = {flight.STORE, flight.CHECKPOINT}
    writers = [rank for rank in evidence.alive if (rank.told.writes_s or 0.0) > BESIDE_S or kinds & set(rank.kinds)]
    for host, before, after, seconds in evidence.machines():
        stalled = max(grown(before, after, *keys) for keys in (("pressure", "io", "some"), ("cgroup", "io_us"))) / 1e6
        here = [rank for rank in writers if shown(rank.host, 60) == host]
        if here and stalled > PRESSURE * seconds:
            yield Cause(
                72,
                f"The disk of host {host} is slow: tasks waited for it for {stalled:.1f} s of {seconds:.1f} s, and "
                f"{here[0]} writes there.",
                [f"{nested(after, 'memory', 'Writeback') / 2**20:,.0f} MiB are on their way to it"],
                "Put the run on another disk (record.dir), or write fewer checkpoints.",
            )


def chronic(evidence: Evidence) -> Iterator[Cause]:
    """A rank takes longer for its steps than the others, again and again."""
    if evidence.first.reason in ("error", "exception", "death", "loss"):
        return
    spent = {rank.number: _computing(rank) for rank in evidence.ranks}
    known = {number: median(times) for number, times in spent.items() if len(times) >= LEAST_STEPS}
    if len(known) < 2:
        return
    for rank in evidence.ranks:
        others = [value for number, value in known.items() if number != rank.number]
        own = known.get(rank.number)
        if (
            own
            and own > SLOW * max(others)
            and own - max(others) > LEAST_S
            and sorted(spent[rank.number])[LEAST_STEPS // 2] > SLOW * median(others)
        ):
            layer = _slowest_layer(evidence, rank)
            yield Cause(
                50,
                f"Rank {rank.number} ({shown(rank.host, 60)}) is slower than the others: {own * 1e3:,.1f} ms for the "
                f"median step, where the others take {median(others) * 1e3:,.1f} ms{layer}.",
                [f"over its last {len(spent[rank.number])} steps"],
                "Look at its core's clock, and at what else runs there; `sync.balance: speed` gives it fewer samples.",
            )


def _computing(rank: Rank) -> list[float]:
    """Return the seconds of a rank's last steps, up to its exchange."""
    steps = {a: (began, took) for kind, _, a, _, began, took in rank.told.events if kind == flight.STEP}
    exchanges = {a: began for kind, _, a, _, began, _ in rank.told.events if kind == flight.EXCHANGE}
    passes = {kind for kind, *_ in rank.told.events}
    if flight.FORWARD not in passes:
        return []  # a server
    return [began - exchanges[step] for step, (began, _) in steps.items() if step in exchanges]


def _slowest_layer(evidence: Evidence, rank: Rank) -> str:
    """Return the layer in which a rank loses most, "" where it loses in all."""

    def by_layer(of: Rank) -> dict[int, float]:
        passes = [event for event in of.told.events if event[0] in (flight.FORWARD, flight.BACKWARD)]
        outer = min((event[1] for event in passes), default=0)
        times: dict[int, list[float]] = {}
        for _, nested_in, layer, _, _, took in passes:
            if nested_in == outer:
                times.setdefault(layer, []).append(took)
        return {layer: median(each) for layer, each in times.items()}

    own, others = by_layer(rank), [by_layer(other) for other in evidence.ranks if other is not rank]
    lost = {}
    for layer, seconds in own.items():
        usual = [other[layer] for other in others if layer in other]
        if usual:
            lost[layer] = seconds - median(usual)
    total = sum(value for value in lost.values() if value > 0)
    if not total:
        return ""
    worst = max(lost, key=lambda layer: lost[layer])
    return f", most of it in {rank.layer(worst)}" if lost[worst] > 0.6 * total and len(lost) > 1 else ""


RULES = (throttled, few_cores, shared_cores, short_memory, slow_disk, chronic)
