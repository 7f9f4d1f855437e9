"""Sweep of ``python -m psframe.bench collectives --ranks N,N`` over numbers of ranks (:class:`Sweep`), all methods."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from psframe.bench import collective_table, collectives, sweep
from psframe.bench.collective_table import Measured
from psframe.bench.files import claim, write
from psframe.cluster import mpirun
from psframe.errors import UserError, reason
from psframe.memory.topology import Topology, read
from psframe.record.view import say

BUILD_S = 120.0
PASSED_ON = ("operation", "memory", "repetitions", "warm_up")


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 1 if a number of ranks failed."""
    cli = collectives.parser()
    sweep.add_options(cli)
    cli.add_argument("--rounds", type=int, default=1, help="starts of each program, in turn (default: 1)")
    cli.add_argument("--out", help="a folder for the figures, or one to add to (default: collectives-TIME)")
    arguments = Namespace(**collectives.checked(vars(cli.parse_args(argv))))
    if arguments.rounds < 1:
        raise UserError(f"--rounds must be 1 or more, got {arguments.rounds}; give 1")
    claim(arguments.json)
    numbers, start, topology = sweep.counts(arguments.ranks), mpirun.launcher(arguments.mpirun), read("/")
    out = Path(arguments.out or time.strftime("collectives-%Y%m%d-%H%M%S"))
    free = collectives.room(arguments.memory, topology)
    arguments.bytes, notices = collectives.fitted(arguments.bytes, arguments.method, max(numbers), free)
    for notice in notices:
        say(notice)
    collective_table.prepare(out)
    with tempfile.TemporaryDirectory(dir=out, prefix="program-") as folder:
        sweeping = Sweep(arguments, start, topology, _program(arguments, start, Path(folder)), out)
        results, failed = sweep.over(numbers, sweeping.measure)
    write(arguments.json, {"bench": "collectives", "rows": [row.plain for rows in results for row in rows]})
    if arguments.json != "-":
        say(f"\n{out / collective_table.CSV}, {collective_table.HDF5}; python -m psframe.report {out} draws them")
    return 1 if failed else 0


def _program(arguments: Namespace, start: Sequence[str], folder: Path) -> Path | None:
    """Build the program of method ``c``; without a compiler print a notice and leave the method out."""
    if "c" not in arguments.method:
        return None
    try:
        return build(start, folder)
    except UserError as error:
        arguments.method.remove("c")
        if not arguments.method:
            raise
        print(f"psframe: method c is left out: {error}", file=sys.stderr)
        return None


def build(start: Sequence[str], folder: Path) -> Path:
    """Compile the program with the launcher's mpicc; raise UserError if none is found, or if it fails."""
    launcher = shutil.which(start[0])
    places = [Path(launcher).with_name("mpicc")] if launcher else []
    places += [Path(sys.executable).with_name("mpicc"), Path(shutil.which("mpicc") or "mpicc")]
    compiler = next((path for path in places if os.access(path, os.X_OK)), None)
    if compiler is None:
        raise UserError("an mpicc must stand beside mpirun or on PATH, got none; install it, or give --method buffer")
    program = folder / "collectives"
    with as_file(files("psframe.bench") / "collectives.c") as source:
        command = [str(compiler), "-O3", "-o", str(program), str(source)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"mpicc must compile a program, got {reason(error)}; try {compiler} by hand") from None
    if result.returncode:
        message = (result.stderr.strip().splitlines() or ["nothing"])[0]
        raise UserError(f"mpicc must compile a program, got {message}; try {compiler} by hand")
    return program


class Sweep:
    """State shared by all numbers of ranks."""

    def __init__(self, arguments: Namespace, start: Sequence[str], topology: Topology, program: Path | None, out: Path):
        self.arguments, self.start, self.topology, self.program = arguments, start, topology, program
        self.out, self.told = out, set[str]()

    def measure(self, n_ranks: int) -> list[Measured]:
        """Measure on ``n_ranks`` ranks, append the rows to the tables, and return them. Raise UserError on failure."""
        say(f"{n_ranks} ranks, {collective_table.environment()}")
        rows: dict[tuple[str, str, str], Measured] = {}
        for _ in range(self.arguments.rounds):
            report = sweep.on_ranks(self.start, n_ranks, "collectives", self._passed_on())
            self._tell(report["notices"])
            new_rows = report["rows"] + (self._by_program(n_ranks, report["cpus"]) if self.program else [])
            for row in new_rows:
                key = (row["operation"], row["method"], row["memory"])
                entry = rows.setdefault(key, Measured.of(row, report))
                entry.seconds += row["seconds"]
        if not rows:
            raise UserError(
                f"--memory must name memory of this machine, got {','.join(self.arguments.memory)}; see above"
            )
        measured = sorted(rows.values(), key=lambda row: row.order)
        collective_table.append(self.out, measured, self.topology)
        say(collectives.table([row.plain for row in measured], []))
        return measured

    def _passed_on(self) -> list[str]:
        keys = vars(self.arguments)
        words = [f"--method={','.join(self.arguments.method)}"]
        words.append("--size=" + ",".join(f"{name}={n / 1e6!r}" for name, n in self.arguments.bytes.items()))
        for name in PASSED_ON:
            value = keys[name]
            words.append(f"--{name.replace('_', '-')}={','.join(value) if isinstance(value, list) else value}")
        return words

    def _by_program(self, n_ranks: int, cpus: list[str]) -> list[dict[str, Any]]:
        """Return the rows of method ``c``, with its ranks on the same cores as the other methods'."""
        rows = []
        pins = "/".join(cpus)
        for memory in self.arguments.memory:
            nodes = {"ddr": self.topology.ddr, "hbw": self.topology.hbw}.get(memory, ())
            if memory != "default" and not nodes:
                continue  # the other methods have reported it
            everywhere = memory == "default" or set(nodes) >= set(self.topology.memory)
            where = "-" if everywhere else ",".join(map(str, nodes))
            for operation, n_bytes in self.arguments.bytes.items():
                counts = (n_bytes, self.arguments.repetitions, self.arguments.warm_up)
                words = [*self.start, "-n", n_ranks, self.program, operation, *counts, where, pins]
                result = mpirun.command([str(word) for word in words])
                if result.complaint:
                    raise UserError(result.complaint)
                seconds = [[float(word) for word in line.split()] for line in result.out.splitlines() if line.strip()]
                placed = None if memory == "default" else 1.0  # the program fails on misplaced pages
                row = {"operation": operation, "method": "c", "memory": memory, "bytes": n_bytes, "placed": placed}
                rows.append(row | {"seconds": seconds})
        return rows

    def _tell(self, notices: Sequence[str]) -> None:
        for notice in notices:
            if notice not in self.told:
                self.told.add(notice)
                print(f"psframe: {notice}", file=sys.stderr)
