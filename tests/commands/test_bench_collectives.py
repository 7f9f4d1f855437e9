"""``psframe.bench collectives``: every method is measured, a wrong result fails it, and what it leaves is whole."""

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from itertools import product

import h5py
import numpy as np
import pytest

from psframe.bench import collective_table
from psframe.bench.collective_methods import CHUNK, base, check, fill, needed_bytes
from psframe.bench.collectives import ALL_METHODS, MEMORIES, OPERATIONS, fitted
from psframe.errors import UserError
from tests.helpers import launcher
from tests.helpers.launcher import ROOT
from tests.helpers.live import heed, ranks_of
from tests.helpers.runs import bench
from tests.helpers.said import told
from tests.helpers.thinned import thinned

SMALL = ["--size", "0.1", "--repetitions", "3", "--warm-up", "1"]


def test_methods_are_measured_at_every_number_of_ranks(mpi, tmp_path):
    ended = bench(mpi, "collectives", "--ranks", "1,3", *SMALL, "--rounds", 2, "--out", tmp_path / "out")
    assert ended.returncode == 0, ended
    rows = list(csv.DictReader((tmp_path / "out" / "collectives.csv").open()))
    found = {(row["operation"], row["method"], row["n_ranks"]) for row in rows}
    assert found == {(o, m, n) for o in OPERATIONS for m in ALL_METHODS for n in ("1", "3")}
    for row in rows:
        assert 0 < float(row["low_s"]) <= float(row["median_s"]) <= float(row["high_s"])
        assert (row["environment"], row["bytes"], row["repetitions"]) == ("host", "100000", "6")
    with h5py.File(tmp_path / "out" / "collectives.h5") as file:
        assert json.loads(file.attrs["topology"])["nodes"]
        assert len(file) == len(rows)
        for group, row in zip(file.values(), rows, strict=True):
            assert group["seconds"].shape == (6, int(row["n_ranks"]))
            assert np.median(group["seconds"][:].max(axis=1)) == pytest.approx(float(row["median_s"]))
    assert not list((tmp_path / "out").glob("program-*"))


@pytest.mark.full
def test_rows_are_added_to_a_folder_of_before(mpich, tmp_path):
    for containers in ("", "2"):
        ended = bench(
            mpich, "collectives", "--ranks", 2, "--method", "buffer", "--operation", "bcast", *SMALL,
            "--out", tmp_path / "out", PSFRAME_N_CONTAINERS=containers,
        )  # fmt: skip
        assert ended.returncode == 0, ended
    rows = list(csv.DictReader((tmp_path / "out" / "collectives.csv").open()))
    assert [row["environment"] for row in rows] == ["host", "2 containers"]


@pytest.mark.full
def test_memory_that_is_not_there_is_left_out_with_a_word(mpich, tmp_path):
    keys = ["--ranks", 2, "--memory", "ddr,hbw", *SMALL, "--out", tmp_path / "out"]
    with_none = bench(mpich, "collectives", *keys, MEMKIND_HBW_NODES="")
    assert with_none.returncode == 0, with_none
    assert with_none.stderr.count("hbw: left out") == 1
    declared = bench(mpich, "collectives", *keys, MEMKIND_HBW_NODES="0")
    assert declared.returncode == 0, declared
    rows = list(csv.DictReader((tmp_path / "out" / "collectives.csv").open()))
    assert {(row["memory"], row["method"]) for row in rows} >= {("hbw", method) for method in ALL_METHODS}
    assert {row["placed"] for row in rows if row["memory"] == "hbw"} <= {"1.0", ""}


WRONG = [(operation, method) for method in ("c", "buffer") for operation in OPERATIONS]


@pytest.mark.parametrize(("operation", "method"), thinned(WRONG, (0, 4, 5)))
def test_wrong_result_fails_the_benchmark(mpi, tmp_path, operation, method):
    library = tmp_path / "corrupt.so"
    mpicc = mpi.prefix / "bin" / "mpicc"
    subprocess.run(
        [mpicc, "-shared", "-fPIC", "-o", library, ROOT / "tests" / "stress" / "corrupt.c"], check=True, timeout=60
    )
    keys = ["--ranks", 2, "--operation", operation, "--method", method, *SMALL, "--out", tmp_path / "out"]
    ended = bench(mpi, "collectives", *keys, LD_PRELOAD=str(library), CORRUPT=operation)
    assert ended.returncode == 2, ended
    (line,) = told(launcher.Ended(2, ended.stdout, ended.stderr, False))
    assert ("result is wrong" if method == "c" else "must bring what was sent") in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--size", "big"], ["--size must be megabytes", "'big'"]),
        (["--size", "scatter=3"], ["--size", "'scatter=3'"]),
        (["--operation", "scatter"], ["--operation", "'scatter'"]),
        (["--method", "shred"], ["--method", "'shared'"]),
        (["--memory", "hbm"], ["--memory", "'hbw'"]),
        (["--ranks", "2,none"], ["--ranks", "'2,none'"]),
        (["--repetitions", "0"], ["--repetitions must be 1 or more"]),
        (["--rounds", "0"], ["--rounds must be 1 or more"]),
        (["--out", "/proc/1/no"], ["--out must be a folder that can be written"]),
        (["--out", "README.md"], ["--out must be a folder that can be written"]),
        (["--method", "c,buffer", "--memory", "default,hbw", "--ranks", "2"], []),
    ],
)
def test_mistakes_are_told_in_one_sentence(mpich, tmp_path, arguments, words):
    keys = [*SMALL, *arguments] if "--out" in arguments else [*SMALL, "--out", tmp_path / "out", *arguments]
    ended = bench(mpich, "collectives", *keys, MEMKIND_HBW_NODES="")
    assert ended.returncode == (2 if words else 0), ended
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("psframe:")]
    assert all(word in line for word in words), line


@pytest.mark.full
def test_methods_but_c_are_measured_without_mpicc(mpich, tmp_path):
    """A launcher and a PATH with no compiler beside them."""
    shim = tmp_path / "bin"
    shim.mkdir()
    (shim / "mpirun").write_text(f'#!/bin/sh\nexec {mpich.prefix / "bin" / "mpirun"} "$@"\n')
    (shim / "mpirun").chmod(0o755)
    python = shutil.which("python3", path="/usr/bin:/bin")
    site = next((mpich.prefix / "lib").glob("python*/site-packages"))
    if python is None:
        pytest.skip("no python3 of the system, beside which there is no mpicc")
    command = [python, "-m", "psframe.bench", "collectives", "--ranks", "2", *SMALL, "--out", str(tmp_path / "out")]
    env = {"PATH": f"{shim}:/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{site}", "HOME": str(tmp_path)}
    if shutil.which("mpicc", path=env["PATH"]):
        pytest.skip("there is an mpicc on the system's own path")
    env["MPI4PY_LIBMPI"] = str(next(mpich.prefix.glob("lib/libmpi.so.*")))
    alone = subprocess.run([*command, "--method", "c"], capture_output=True, text=True, timeout=120, cwd=ROOT, env=env)
    if "No module named" in alone.stderr:
        pytest.skip("the system's python3 is another version than the environment's")
    assert alone.returncode == 2, alone
    assert "an mpicc must stand beside mpirun" in alone.stderr
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=env)
    assert ended.returncode == 0, ended
    assert "method c is left out: an mpicc must" in ended.stderr
    methods = {row["method"] for row in csv.DictReader((tmp_path / "out" / "collectives.csv").open())}
    assert methods == {*ALL_METHODS} - {"c"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_ranks_too(mpich, tmp_path, number):
    marker = f"--out={tmp_path / 'out'}"
    command = [str(mpich.python), "-m", "psframe.bench", "collectives", "--ranks", "2", "--size", "1", marker]
    heeds = {"preexec_fn": heed}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command += ["--repetitions", "100000", "--operation=gather"]
    rank_has = "--repetitions=100000"  # as the ranks are given it
    process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes, **heeds)
    until = time.monotonic() + 300
    while not (ranks := ranks_of(rank_has)) and time.monotonic() < until:
        time.sleep(0.1)
    assert ranks, process.kill() or process.communicate()
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, (out, err)
    assert "Traceback" not in err
    until = time.monotonic() + 120
    while ranks_of(rank_has) and time.monotonic() < until:
        time.sleep(0.1)
    assert not ranks_of(rank_has)


def test_numbers_that_are_wrong_or_out_of_place_are_found():
    n = 3 * CHUNK + 5
    array = np.empty(n, np.int32)
    fill(array, base(2, 4))
    check(array, base(2, 4))
    check(array * 3, 3 * base(2, 4), 3)
    for spoil in (lambda a: a.__setitem__(n - 1, 0), lambda a: a.__setitem__(slice(None), np.roll(a, 1))):
        wrong = array.copy()
        spoil(wrong)
        with pytest.raises(UserError, match="must bring what was sent"):
            check(wrong, base(2, 4))


def test_sizes_are_halved_until_they_fit():
    asked = {"bcast": 256_000_000, "gather": 16_000_000}
    fit, notices = fitted(asked, ["c", "object"], 64, 24_000_000_000)
    assert fit["gather"] == 16_000_000
    assert len(notices) == 1
    assert "bcast: 256 MB a rank do not fit 64 ranks" in notices[0]
    assert (
        needed_bytes("bcast", ["object"], 64, fit["bcast"])
        <= 0.8 * 24e9
        < needed_bytes("bcast", ["object"], 64, 2 * fit["bcast"])
    )
    assert fitted(asked, ["shared"], 2, 24_000_000_000) == (asked, [])


@pytest.mark.full
def test_row_that_was_cut_short_spoils_no_other(mpich, tmp_path):
    out = tmp_path / "out"
    keys = ["collectives", "--ranks", 2, "--operation", "bcast", *SMALL, "--out", out]
    assert bench(mpich, *keys, "--method", "buffer,object").returncode == 0
    whole = (out / "collectives.csv").read_text()
    (out / "collectives.csv").write_text(whole[:-50])
    assert bench(mpich, *keys, "--method", "shared").returncode == 0
    shown = [str(mpich.python), "-m", "psframe.report", str(out), "--out", str(tmp_path / "page.html")]
    ended = subprocess.run(shown, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ended.returncode == 0
    assert "1 damaged line(s) are left out" in ended.stderr
    page = (tmp_path / "page.html").read_text()
    assert all(f"{method}, default" in page for method in ("buffer", "shared"))
    assert "object, default" not in page


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--memory", "hbw"], "--memory must name memory of this machine, got hbw"),
        (["--json", "/no/such/file"], "--json must name a file to write"),
        (["--mpirun", "false"], "false must run what it is given, got exit status 1"),
    ],
)
def test_option_that_can_never_work_is_an_error(mpich, tmp_path, arguments, word):
    keys = ["--ranks", "2", *SMALL, "--out", str(tmp_path / "out"), *arguments]
    command = [str(mpich.python), "-m", "psframe.bench", "collectives", *keys]
    env = {**os.environ, "MEMKIND_HBW_NODES": ""}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=env)
    assert ended.returncode == 2, ended
    assert ended.stderr.splitlines()[-1].startswith(f"psframe: {word}")


def test_figures_that_are_damaged_are_not_added_to(mpich, tmp_path):
    keys = ["collectives", "--ranks", 1, "--operation", "bcast", "--method", "buffer", *SMALL, "--out", tmp_path]
    assert bench(mpich, *keys).returncode == 0
    figures = tmp_path / "collectives.h5"
    figures.write_bytes(figures.read_bytes()[:1000])
    ended = bench(mpich, *keys)
    assert (ended.returncode, "must be whole to be added to" in ended.stderr) == (2, True), ended


def test_options_that_start_mpirun_are_refused_under_it(mpich):
    ended = launcher.run(mpich, 2, ["-m", "psframe.bench", "collectives", "--ranks", "2"])
    assert ended.status == 2
    (line,) = told(ended)
    assert "starts mpirun itself" in line


def test_rows_stand_by_operation_then_method_then_memory():
    places = [*product(OPERATIONS[:2], ALL_METHODS[:3], MEMORIES)]
    rows = [collective_table.Measured(*place, 2, 1, 1000, None, "MPI") for place in places]
    shuffled = sorted(rows, key=lambda row: (row.memory, row.method))
    assert sorted(shuffled, key=lambda row: row.order) == rows
