"""Callbacks of a script that fail, or end with what it cannot have: what stays of the run, and of the others."""

import logging
from threading import Lock

import pytest

import psframe
from psframe.record import checkpoint, metrics
from tests.helpers import launcher
from tests.helpers.fits import given


@pytest.fixture
def mpich(monkeypatch):
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    monkeypatch.setenv("PSFRAME_MPIRUN", str(mpi.prefix / "bin" / "mpirun"))


def test_run_whose_script_fails_leaves_with_a_checkpoint_and_the_epoch_s_record(mpich, tmp_path):
    class Fails(psframe.Callback):
        in_script = True

        def on_epoch_end(self, control, record):
            raise ZeroDivisionError("on purpose")

    train = {"epochs": 1000, "batch_size": 10}
    with pytest.raises(psframe.UserError, match=r"got ZeroDivisionError.*on purpose"):
        psframe.fit(**given(tmp_path, callbacks=[Fails()], train=train, checkpoint={"every_epochs": 1000}))
    (path,) = (tmp_path / "runs").iterdir()
    assert checkpoint.epoch_of(path / "checkpoints") >= 1
    assert metrics.last_epoch(path) >= 1


class Ends(psframe.Callback):
    """Tells by its attributes how it ended, and logs an error that ends nothing."""

    def __init__(self, what):
        self.what, self.epoch = what, 0

    def on_epoch_end(self, control, record):
        logging.getLogger("psframe.mine").error("a bad sample")
        logging.getLogger("psframe.mine").warning("a strange one")
        self.epoch, self.held = control.epoch, Lock() if self.what == "lock" else None


def test_state_that_cannot_be_sent_is_told_and_keeps_no_other_from_the_script(mpich, tmp_path, capfd):
    """Nor does an error that a callback logs keep a script from what comes after it."""
    callbacks = [Ends("lock"), Ends("plain")]
    psframe.fit(**given(tmp_path, callbacks=callbacks))
    assert [callback.epoch for callback in callbacks] == [0, 2]
    told = capfd.readouterr().err
    assert "psframe: error: a bad sample" in told
    assert "psframe: warning: a strange one" in told
    assert "does not get what Ends has ended with" in told
