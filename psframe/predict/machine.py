"""Machine profiles (:class:`Machine`): YAML with every figure and its source.

``configs/machines`` holds those that come with psframe; :mod:`psframe.predict.measure` writes one of the machine that
it runs on, with measured exchanges. Everything here is plain data: no MPI.
"""

import errno
import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec

from psframe.config import strict_yaml, untrusted
from psframe.config.registry import Positive, PositiveInt
from psframe.errors import UserError, nearest, reason
from psframe.record import sealed
from psframe.record.folder import Folder

LINKS = "links"  # the file of links among the machines
MAX_BYTES = 1 << 20
FIGURES = ("gflops", "scalar", "latency_us", "copy_gbps", "sum_gbps")  # of a core
MPI_COPIES = 0.5  # rate of copies in cells through MPI's shared memory, over that of a core's copies


Number = Annotated[float, msgspec.Meta(ge=1e-6, le=1e9)]


class Figure(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A number and its source."""

    value: Number
    source: Annotated[str, msgspec.Meta(min_length=1)]


class Tier(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A kind of memory of a node.

    Attributes
    ----------
    gbps : Figure
        GB/s that all cores read and write together (STREAM triad, McCalpin 1995).
    core_gbps : Figure
        GB/s of one core alone.
    gib : Figure
        GiB of a node.
    """

    gbps: Figure
    core_gbps: Figure
    gib: Figure


class Link(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A link between nodes.

    Attributes
    ----------
    latency_us : Figure
        Microseconds of a small message, one way, between two ranks.
    gbit : Figure
        Gb/s of MPI's payload, each way.
    """

    latency_us: Figure
    gbit: Figure


class Exchange(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Measured seconds of one way to exchange and update.

    Attributes
    ----------
    method : str
        Its name, from :func:`psframe.predict.job.method`.
    ranks, bytes : int
        Ranks of the job, and bytes of the parameters.
    seconds : float
        Seconds of a step beyond those without exchange.
    """

    method: str
    ranks: PositiveInt
    bytes: PositiveInt
    seconds: Annotated[float, msgspec.Meta(ge=0)]


class Check(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An epoch that was predicted first, or simulated, and measured after.

    Attributes
    ----------
    what : str
        Model, mode and collective.
    ranks : int
    predicted_s, measured_s : float
    hosts : int
    """

    what: str
    ranks: PositiveInt
    predicted_s: Positive
    measured_s: Positive
    hosts: PositiveInt = 1

    @property
    def error(self) -> float:
        """The prediction's relative error: predicted over measured seconds, less 1."""
        return self.predicted_s / self.measured_s - 1


class Machine(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A node, and its link to others.

    Attributes
    ----------
    title : str
    cores : Figure
        Physical cores of a node.
    gflops : Figure
        1e9 float32 operations a second of one core while all are busy.
    scalar : Figure
        Speed of a core that runs an interpreter, relative to a core of Zen 3 at 3.4 GHz.
    memory : str
        The tier of buffers unless a config requests another.
    tiers : dict of str to Tier
    latency_us : Figure
        Microseconds of a small message between two cores of a node.
    copy_gbps : Figure
        GB/s of payload at which one core copies.
    sum_gbps : Figure
        GB/s of payload at which one core adds a vector to another.
    mpi_copy_gbps, mpi_sum_gbps : Figure, optional
        MPI's rates of these two; by default half of the first and all of the second.
    link : str
        The one of ``links.yaml`` that joins such nodes, unless another is requested.
    mpi : str
        The MPI of the measured exchanges and checks.
    load : str
        Other load on the machine while its figures were measured; empty if none.
    exchanges : list of Exchange
        Measured on this machine; empty if none.
    checks, simulations : list of Check
        Epochs of this machine, measured, and predicted or simulated.
    """

    title: str
    cores: Figure
    gflops: Figure
    scalar: Figure
    memory: str
    tiers: dict[str, Tier]
    latency_us: Figure
    copy_gbps: Figure
    sum_gbps: Figure
    mpi_copy_gbps: Figure | None = None
    mpi_sum_gbps: Figure | None = None
    link: str = "10"
    mpi: str = ""
    load: str = ""
    exchanges: list[Exchange] = []
    checks: list[Check] = []
    simulations: list[Check] = []

    @property
    def mpi_copy(self) -> float:
        return self.mpi_copy_gbps.value if self.mpi_copy_gbps else MPI_COPIES * self.copy_gbps.value

    @property
    def mpi_sum(self) -> float:
        return self.mpi_sum_gbps.value if self.mpi_sum_gbps else self.sum_gbps.value

    def tier(self, name: str | None) -> Tier:
        """Return a tier, the machine's own by default; raise UserError if the machine lacks it."""
        tier = self.tiers.get(name or self.memory)
        if tier is None:
            raise UserError(
                f"a placement must be a tier of the machine ({self.title}), got {name or self.memory!r}; give one of "
                f"{', '.join(self.tiers)}"
            )
        return tier


def read(name: str) -> Machine:
    """Return the machine of a file, or psframe's own profile of this name; raise UserError if it is invalid."""
    machine: Machine = _converted(name, _text(name), Machine)
    if machine.memory not in machine.tiers:
        raise UserError(
            f"memory must be a tier of the machine, got {machine.memory!r} in {name!r}; {nearest('', machine.tiers)}"
        )
    if machine.link not in links():
        raise UserError(f"link must name a link, got {machine.link!r} in {name!r}; {nearest(machine.link, links())}")
    if machine.cores.value < 1 or machine.cores.value % 1:
        raise UserError(f"cores must be a whole number, got {machine.cores.value:g} in {name!r}; give the node's")
    return machine


@cache
def links() -> dict[str, Link]:
    """Return the links that come with psframe, by name."""
    by_name: dict[str, Link] = _converted(LINKS, _text(LINKS), dict[str, Link])
    return by_name


def link(name: str) -> Link:
    """Return a link by name; raise UserError if it is unknown."""
    by_name = links()
    if name not in by_name:
        raise UserError(f"--link must name a link, got {name!r}; {nearest(name, by_name)}")
    return by_name[name]


def names() -> list[str]:
    """Return the names of the machines that come with psframe."""
    paths = (Path(entry.name) for entry in files("psframe.machines").iterdir())
    return sorted(path.stem for path in paths if path.suffix == ".yaml" and path.stem != LINKS)


def is_own(name: str) -> bool:
    """Return True if :func:`read` takes a name for a profile that comes with psframe, and not for a file."""
    return name in names()


def claim(path: str) -> None:
    """Raise UserError, before anything is measured, if :func:`write` could not write; existing content stays."""
    try:
        if Path(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        probe = f"{Path(path).name}.part"
        with Folder.chosen(Path(path).parent) as folder:
            os.close(folder.make_fd(probe))
            folder.remove(probe)
    except OSError as error:
        raise _unwritable(path, error) from None


def write(path: str, machine: Machine) -> None:
    """Write a profile; raise UserError on failure."""
    import yaml

    plain: Mapping[str, Any] = msgspec.to_builtins(machine)
    try:
        text = yaml.safe_dump(plain, sort_keys=False, width=150, default_flow_style=None)
        sealed.put(Path(path).parent.resolve() / Path(path).name, text)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str, error: OSError) -> UserError:
    return UserError(f"a profile must go to a file that can be written, got {path!r} ({reason(error)})")


def _text(name: str) -> str:
    try:
        if name in (*names(), LINKS):
            return (files("psframe.machines") / f"{name}.yaml").read_text("utf-8")
        return untrusted.text(name, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--machine must be a profile, got {name!r} ({reason(error)}); give a file, or {', '.join(names())}"
        ) from None


def _converted(name: str, said: str, kind: Any) -> Any:
    try:
        return msgspec.convert(strict_yaml.load(said, name), kind)
    except msgspec.ValidationError as error:
        raise UserError(f"a machine profile must be as explanation/predict.md says, got {name!r}: {error}") from None
