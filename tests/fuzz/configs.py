"""Configs, overrides, and what else is written by hand."""

from pathlib import Path

import msgspec

from psframe.cluster import mpirun
from psframe.config import schema
from psframe.memory import topology
from psframe.nn import metrics
from psframe.train.plan import sections
from tests.fuzz.base import Prepared, told
from tests.helpers import machine_trees as trees
from tests.helpers.launcher import ROOT


def resolved(found: schema.Config) -> None:
    """Go on with a config as a run does, up to where its strategies are made."""
    plain = msgspec.to_builtins(found)
    schema.to_yaml(plain)
    for section in sections.TABLES:
        at = plain
        for key in section.split("."):
            at = at[key]
        if ":" not in str(at[schema.STRATEGIES.get(section, "name")]):  # module:attr runs what it names
            sections.choice(plain, section)
    asked = plain["record"]["metrics"]
    if ":" not in str([spec if isinstance(spec, str) else spec.get("name") for spec in asked]):
        metrics.choose(asked, sections.METRICS)


def whole(folder: Path) -> Prepared:
    file = folder / "config.yaml"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        with told():
            resolved(schema.read(str(file)))

    return Prepared([path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml"))], read)


def base(folder: Path) -> Prepared:
    """A config and its bases, which ``===`` divides: files 0, 1, ... of one folder."""

    def read(data: bytes) -> None:
        for number, part in enumerate(data.split(b"\n===\n")[:4]):
            (folder / str(number)).write_bytes(part)
        with told():
            resolved(schema.read(str(folder / "0")))

    two = b"base: '1'\nsync: {mode: easgd}\noptimizer: {lr: 1}\nplacement: {data: {numa: [1]}}\n===\nmodel: lenet\n"
    two += b"dataset: digits\nsync: {mode: sync_ps, server: colocated}\noptimizer: adam\nplacement: {data: ddr}"
    return Prepared([two, b"base: '1'\n===\nbase: '2'\n===\nmodel: lenet\ndataset: digits", b"base: '0'"], read)


def override(folder: Path) -> Prepared:
    def read(data: bytes) -> None:
        with told():
            raw = {"name": "run", "model": "lenet", "dataset": "mnist_5k"}
            resolved(schema.resolve(raw, data.decode("utf-8", "surrogateescape").split("\n")))

    seeds = [b"train.epochs=3\noptimizer.lr=1e-3", b"placement.parameters={numa: [1]}", b"model={name: lenet}"]
    return Prepared([*seeds, b"dataset={name: synthetic, shape: [1, 6, 6]}\nsync=easgd\nsync.alpha=0.5"], read)


def launcher(folder: Path) -> Prepared:
    def read(data: bytes) -> None:
        with told():
            mpirun.launcher(data.decode("utf-8", "surrogateescape"))

    return Prepared([b"mpirun --oversubscribe", b"srun --mpi=pmix 'a b'"], read)


def hbw_nodes(folder: Path) -> Prepared:
    root = trees.knl(folder, 2, n_cores=4, threads=2, hmat=True)

    def read(data: bytes) -> None:
        with told():
            topology.read(root, environ={"MEMKIND_HBW_NODES": data.decode("utf-8", "surrogateescape")})

    return Prepared([b"all", b"2-3", b"2,3"], read)


TARGETS = {"config": whole, "base": base, "override": override, "launcher": launcher, "hbw_nodes": hbw_nodes}
