"""Disks that do not answer hold nobody up, and are asked again once they have."""

import os
import threading

from psframe.cluster.flight.disks import Disks


def test_disk_that_hangs_is_left_alone_until_it_answers():
    disks, goes_on = Disks(), threading.Event()
    assert disks.ask("/run", goes_on.wait, False, 0.05) is False
    assert disks.ask("/run", lambda: True, False, 60.0) is False, "a thread more would hang with it"
    assert disks.ask("/tmp", lambda: True, False, 60.0) is True
    goes_on.set()
    while not disks.ask("/run", lambda: True, False, 60.0):
        pass


def test_error_of_a_disk_is_no_answer():
    assert Disks().ask("/none", lambda: os.listdir("/none"), [], 60.0) == []
    assert Disks().ask("\0", lambda: os.listdir("\0"), [], 60.0) == []


def test_disk_is_asked_without_a_thread_where_there_is_none(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert Disks().ask("/tmp", lambda: True, False, 60.0) is True
