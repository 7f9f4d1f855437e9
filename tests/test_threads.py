"""The threads of a rank: when they start, what they raise, and that a fork does not take them along."""

import os
import threading

import pytest

from psframe.nn.threads import Threads


def test_every_part_runs_once_and_no_thread_starts_before():
    before = threading.active_count()
    threads = Threads(4)
    assert threading.active_count() == before
    done = []
    for _ in range(50):
        threads.run(lambda part, n, word: done.append((part, n, word)), "x")
    assert sorted(done) == sorted([(part, 4, "x") for part in range(4)] * 50)
    assert threading.active_count() == before + 3


def test_phases_wait_for_each_other():
    threads, seen = Threads(3), []
    threads.run_phases(2, lambda part, n, phase: seen.append(phase))
    assert seen == [0] * 3 + [1] * 3
    Threads(1).run_phases(2, lambda *args: seen.append(args))
    assert seen[-1] == (0, 1, -1), "one thread does all phases in one call"


@pytest.mark.parametrize("failing", [0, 2])
def test_an_error_in_a_part_is_raised_and_the_threads_live_on(failing):
    threads, done = Threads(3), []

    def kernel(part, n):
        if part == failing:
            raise ValueError(f"part {part}")
        done.append(part)

    with pytest.raises(ValueError, match=f"part {failing}"):
        threads.run(kernel)
    threads.run(lambda part, n: done.append(part))
    assert len(done) == 2 + 3


def test_a_forked_process_starts_its_own():
    threads = Threads(3)
    threads.run(lambda part, n: None)
    child = os.fork()
    if child == 0:
        done = []
        threads.run(lambda part, n: done.append(part))
        os._exit(0 if sorted(done) == [0, 1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
