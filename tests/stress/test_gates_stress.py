"""The protocol of the gates, by the threads of a C program, also under ThreadSanitizer; and that it finds mistakes."""

import os
import shutil
import subprocess
from functools import cache

import pytest

from tests.helpers.launcher import ROOT
from tests.helpers.thinned import thinned

WRAPS = 2**32 - 100  # the counters pass zero during a run

#: threads, reducers, steps, chunks, spins, how often the gates have opened before
STRESSES = [
    (1, 1, 20_000, 3, 0, WRAPS),
    (2, 1, 100_000, 1, 0, 0),
    (2, 2, 20_000, 1, 2000, WRAPS),
    (3, 2, 20_000, 3, 0, WRAPS),
    (4, 4, 2_000, 5, 2000, 0),
    (5, 2, 10_000, 4, 0, 0),
    (8, 3, 20_000, 1, 0, WRAPS),
    (8, 8, 2_000, 2, 2000, WRAPS),
]

BROKEN = ["SKIP_READY", "SKIP_SUMMED", "SKIP_COMMITTED", "FORGET_ONE_WORKER", "FORGET_ONE_REDUCER", "ONE_BUFFER"]
RACES = ["RELAX_LOOK", "RELAX_ARRIVAL", "RELAX_OPENING"]  # wrong by C's memory model, and right on some CPUs
MISTAKES = [*(f"BREAK={mistake}" for mistake in BROKEN), "WAKE_NOBODY", *RACES]
EACH = [(mistake, tsan) for mistake in MISTAKES for tsan in (False, True) if tsan or mistake not in RACES]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Return what compiles the program, with ThreadSanitizer or without, or skips."""
    folder = tmp_path_factory.mktemp("stress")

    @cache
    def compile_(sanitized, *macros, source="sync_stress"):
        compiler = shutil.which("cc") or pytest.skip("no C compiler is installed")
        program = folder / "-".join([source, *macros, *["sanitized"] * sanitized])
        command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-O2", "-pthread", "-Ipsframe/compiled"]
        command += [*(f"-D{macro}" for macro in macros), f"tests/stress/{source}.c", "-o", program]
        for flags in [[], ["-fsanitize=thread"]][: 1 + sanitized]:
            ended = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=120)
            if flags and ended.returncode:
                pytest.skip(f"the C compiler has no ThreadSanitizer: {ended.stderr}")
            assert ended.returncode == 0, ended.stderr
        return program

    return compile_


@pytest.mark.parametrize("sanitized", [False, True], ids=["plain", "sanitized"])
@pytest.mark.parametrize("threads", [2, 3, 9])
def test_counters_and_locks(build, threads, sanitized):
    """Of a store: posts and grants, and sums under a lock."""
    n = 2_000 if sanitized else 20_000
    ended = stress(build(sanitized, source="store_stress"), threads, n, 0, timeout_s=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{(threads - 1) * n} posts\n", "")


@pytest.mark.parametrize("mistake", ["NO_LOCK", "NO_GRANT", "LATE_POST"])
def test_counters_and_locks_notice_mistakes(build, mistake):
    ended = stress(build(True, mistake, "PATIENCE_S=0.5", source="store_stress"), 4, 5_000, 0)
    told = ("data race", "a post is not whole", "the sum is wrong", "that nobody made")
    assert ended.returncode in (1, 66), ended  # ThreadSanitizer's where it has something to say, as that threads go on
    assert any(words in ended.stderr for words in told), ended.stderr


#: threads, rounds, microseconds that a waiter waits at a time, spins, how often the gates have opened before
BOARDS = [(1, 2_000, 50, 0, 0), (2, 5_000, 20, 0, WRAPS), (5, 2_000, 200, 500, 0), (9, 500, 20, 0, WRAPS)]


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sanitized", [False, True], ids=["plain", "sanitized"])
@pytest.mark.parametrize("arguments", BOARDS, ids=str)
def test_board_and_a_gate_whose_parties_change(build, arguments, sanitized, times):
    threads, rounds, *rest = arguments
    program = build(sanitized, source="board_stress")
    ended = stress(program, threads, rounds * times, *rest, seed=times, timeout_s=120 * times)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{rounds * times} rounds\n", "")


@pytest.mark.parametrize("sanitized", [False, True], ids=["plain", "sanitized"])
@pytest.mark.parametrize("mistake", thinned(["NO_FIRST", "NO_SECOND", "NO_WAIT", "FORGET_ONE", "TELL_ALL"], (1, 4)))
def test_board_notices_mistakes(build, mistake, sanitized):
    ended = stress(build(sanitized, mistake, "PATIENCE_S=0.5", source="board_stress"), 4, 3_000, 50, 0, 0)
    race = sanitized and ended.returncode == 66 and "data race" in ended.stderr
    assert race or (ended.returncode == 1 and "rank " in ended.stderr), ended


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sanitized", [False, True], ids=["plain", "sanitized"])
@pytest.mark.parametrize("arguments", [(1, 1_000, 1_000), (3, 2_000, 2_000), (8, 300, 5_000)], ids=str)
def test_front_that_is_closed_ends_all_with_one_step(build, arguments, sanitized, times):
    threads, rounds, longest = arguments
    program = build(sanitized, source="front_stress")
    ended = stress(program, threads, rounds * times, longest, 0, seed=times, timeout_s=120 * times)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{rounds * times} rounds\n", "")


@pytest.mark.parametrize("mistake", thinned(["SPLIT_MAY", "SPLIT_CLOSE"], (1,)))
def test_front_notices_mistakes(build, mistake):
    ended = stress(build(False, mistake, "MOST_STEPS=10000000", source="front_stress"), 4, 3_000, 2_000, 0)
    assert ended.returncode == 1, ended
    assert "a rank goes on" in ended.stderr or "different steps" in ended.stderr


#: readers, writers, clocks, tries before a reader takes the lock, where the clock stands at first
PULLS = [(1, 1, 50_000, 8, 0), (3, 1, 5_000, 8, WRAPS), (2, 2, 20_000, 0, 0), (4, 3, 5_000, 1, WRAPS)]


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.parametrize("arguments", PULLS, ids=str)
def test_pulls_beside_a_writer(build, arguments, times):
    """Only plain: ThreadSanitizer does not know the fences that order a copy and the look at its clock."""
    readers, writers, clocks, *rest = arguments
    ended = stress(build(False, source="pull_stress"), readers, writers, clocks * times, *rest, timeout_s=120 * times)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{clocks * times} clocks\n", "")


@pytest.mark.parametrize(("mistake", "tries"), [("NO_LOOK", 8), ("LATE_BEGIN", 8), ("EARLY_COMMIT", 8), ("NO_LOCK", 0)])
def test_pulls_notice_mistakes(build, mistake, tries):
    # a mistake shows where a writer laps a copy: soon, or on a machine with little going on at once, late
    ended = stress(build(False, mistake, source="pull_stress"), 2, 2, 50_000_000, tries, 0)
    assert (ended.returncode, ended.stdout) == (1, ""), ended
    assert "a copy is not of its clock" in ended.stderr or "the clock goes back" in ended.stderr


def stress(program, *arguments, seed=1, timeout_s=300):
    """Run the program; where ThreadSanitizer cannot place its memory, without random addresses, or skip."""
    command = [program, *map(str, arguments[:-1]), str(seed), str(arguments[-1])]
    env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    for before in [[], ["setarch", "-R"]][: 2 if shutil.which("setarch") else 1]:
        ended = subprocess.run([*before, *command], env=env, capture_output=True, text=True, timeout=timeout_s)
        if "unexpected memory mapping" not in ended.stderr and not ended.stderr.startswith("setarch:"):
            return ended
    pytest.skip(f"ThreadSanitizer does not run here: {ended.stderr}")


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.soak)])
@pytest.mark.parametrize("sanitized", [False, True], ids=["plain", "sanitized"])
@pytest.mark.parametrize("arguments", STRESSES, ids=str)
def test_gates_let_no_number_be_wrong(build, arguments, sanitized, times):
    threads, reducers, steps, *rest = arguments
    steps = steps * times // (10 if sanitized else 1)
    ended = stress(build(sanitized), threads, reducers, steps, *rest, seed=times, timeout_s=300 * times)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{steps} steps\n", "")


@pytest.mark.parametrize(
    ("mistake", "sanitized"),
    thinned(EACH, range(0, len(EACH), 3)),
)
def test_stress_notices_mistakes(build, mistake, sanitized):
    program = build(sanitized, mistake, "PATIENCE_S=0.5")
    for spins in (0, 2000):
        ended = stress(program, 4, 2, 10_000, 3, spins, 0)
        race = sanitized and ended.returncode == 66 and "data race" in ended.stderr
        assert race or (mistake not in RACES and ended.returncode == 1 and "rank " in ended.stderr), ended.stderr
