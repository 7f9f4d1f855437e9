"""Ranks of the backend "psframe" that are killed, stopped, interrupted, or call what does not fit together.

No launcher watches over them: torchrun ends all ranks as soon as one has ended, before they can say anything.
"""

import itertools
import json
import re
import signal

import pytest

from tests.torch import started
from tests.torch.started import errors, job

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

LATE_S = 60
#: what a call of ``faults.lost`` is named in a message
MESSAGES = {
    "all_reduce": ("all_reduce of 160,000 bytes",),
    "ddp": ("all_reduce of 159,996 bytes",),
    "ddp_static": ("all_reduce of 159,996 bytes",),
    "ddp_hook": ("all_reduce of 79,998 bytes",),
    "ddp_buffers": ("bytes",),  # the broadcast of buffers, or what comes after it
    "ring": ("160,000 bytes",),
    "broadcast": ("broadcast of 160,000 bytes",),
    "all_gather": ("all_gather of 160,000 bytes",),
    "reduce_scatter": ("reduce_scatter of ", "0,000 bytes"),
    "all_to_all": ("all_to_all", "0,000 bytes"),
    "barrier": ("barrier",),
    "objects": ("all_gather of ", "bytes"),
    "future": ("all_reduce of 160,000 bytes",),
    "async": ("all_reduce of 160,000 bytes",),
    "reduce": ("reduce of 160,000 bytes",),
    "all_gather_into_tensor": ("all_gather of 160,000 bytes",),
    "gather": ("gather of 160,000 bytes",),
    "scatter": ("scatter of 160,000 bytes",),
}
MOST = ("all_reduce", "ddp", "ddp_hook", "ddp_static", "ring", "all_to_all", "barrier", "future")
FEW = MOST[:2]
TIMEOUT_S = {"SIGKILL": LATE_S * 10, "SIGSTOP": 8}  # the end of a rank is noticed without it


def _lost(n, name, victim, how):
    return [job(n, "faults.lost", name, victim, how, TIMEOUT_S[how], late_s=LATE_S)]


def _left_nothing(told):
    assert not told["late"], (told["statuses"], told["err"])
    assert told["processes"] == []
    assert told["shm"] == []


LOST = [
    *(pytest.param(_lost(3, name, 1, "SIGKILL"), id=f"{name}-killed") for name in MOST),
    *(pytest.param(_lost(3, name, 1, "SIGSTOP"), id=f"{name}-stopped") for name in FEW),
    *(pytest.param(_lost(3, "all_reduce", victim, "SIGKILL"), id=f"{victim}-killed") for victim in (0, 2)),
    *(
        pytest.param(_lost(n, name, victim, how), id=f"{name}-{victim}-of-{n}-{how}", marks=pytest.mark.full)
        for n in (2, 5)
        for name, victim, how in itertools.product(MESSAGES, range(n), TIMEOUT_S)
    ),
]


@pytest.mark.parametrize("jobs", LOST)
def test_rank_that_is_lost_is_named_by_all_others(told):
    """In one sentence with the collective and its size, by whoever waits for it, and whoever comes later."""
    (told,) = told
    _left_nothing(told)
    name, victim, how, _ = told["job"]["args"]
    for rank, (status, err) in enumerate(zip(told["statuses"], told["err"], strict=True)):
        if rank == victim:
            assert status == -signal.SIGKILL
            continue
        assert status == 1, err
        (raised,) = errors(err)
        assert raised.startswith("torch.distributed.DistBackendError: ")
        assert "\n" not in raised.strip()
        # others may be named besides, which have ended with this error before; in a ring a rank waits for its
        # neighbour, which may have ended so, or itself wait for a stopped one
        beside = name != "ring" or (rank - victim) % told["job"]["n"] in (1, told["job"]["n"] - 1)
        named = victim if beside and (name, how) != ("ring", "SIGSTOP") else r"\d+"
        causes = {"SIGKILL": "ha(s|ve) ended", "SIGSTOP": "8 s" if name != "ring" else "8 s|ha(s|ve) ended"}
        for word in (rf"\branks? (\d+, )*{named}\b", *map(re.escape, MESSAGES[name]), causes[how]):
            assert re.search(word, raised)


@pytest.mark.parametrize(
    "jobs",
    [
        [job(3, "faults.lost", "new_group", 1, "SIGKILL", 3)],
        pytest.param([job(3, "faults.lost", "new_group", 1, "SIGSTOP", 3)], marks=pytest.mark.full),
    ],
    ids=["killed", "stopped"],
)
def test_rank_that_is_lost_while_a_group_is_made_ends_the_others(told):
    """Which wait for it in PyTorch's store, whose time-out is the group's."""
    (told,) = told
    _left_nothing(told)
    for rank in (0, 2):
        assert told["statuses"][rank] == 1
        (raised,) = errors(told["err"][rank])
        assert raised.startswith(("torch.distributed.DistBackendError: ", "torch.distributed.DistStoreError: "))


ENDS = {"returns": 0, "raises": 1, "exits": 7, "destroys": 0}


@pytest.mark.parametrize("jobs", [[job(2, "faults.left", how)] for how in ENDS], ids=ENDS)
def test_rank_that_leaves_is_named(told):
    """Though it ends well; or with an error of its own, which is then the one that it shows."""
    (told,) = told
    (how,) = told["job"]["args"]
    _left_nothing(told)
    assert told["statuses"] == [1, ENDS[how]], told["err"]
    (raised,) = errors(told["err"][0])
    assert "rank 1 has ended, and all_reduce of 160,000 bytes" in raised
    assert errors(told["err"][1]) == (["ValueError: a mistake of the script"] if how == "raises" else [])


@pytest.mark.parametrize(
    ("jobs", "come"),
    [
        ([job(3, "faults.left_before_messages", "pair")], [[1, 1, 1]]),
        ([job(3, "faults.left_before_messages", "any")], [[1, 1, 1, 1], [2, 2, 2, 2]]),
    ],
    ids=["pair", "any"],
)
def test_message_comes_though_others_have_left(told, come):
    (told,) = told
    _left_nothing(told)
    assert told["statuses"] == [0, 0, 0], told["err"]
    assert sorted(json.loads(told["out"][0])["come"]) == come


@pytest.mark.parametrize("jobs", [[job(2, "faults.lost_with_child")]])
def test_killed_rank_is_noticed_though_a_process_of_its_own_lives_on(told):
    (told,) = told
    assert told["statuses"] == [1, -signal.SIGKILL]
    (raised,) = errors(told["err"][0])
    assert "rank 1 has ended" in raised
    assert len(told["processes"]) == 1


@pytest.mark.full
def test_ranks_of_their_own_processes_end_when_one_is_killed(tmp_path):
    """As above, but each an interpreter of its own, started as any launcher would."""
    words = "from tests.torch.faults import backend, lost; backend('psframe'); lost('all_reduce', 0, 'SIGKILL', 600)"
    with started.plain(3, ["-c", words], BACKEND="psframe", FOLDER=str(tmp_path)) as ranks:
        ends = [(rank.communicate(timeout=LATE_S * 2)[1], rank.returncode) for rank in ranks]
    assert [status for _, status in ends] == [-signal.SIGKILL, 1, 1]
    for err, _ in ends[1:]:
        (raised,) = errors(err)
        assert "rank 0 has ended, and all_reduce of 160,000 bytes" in raised


@pytest.mark.parametrize("jobs", [[job(2, "faults.interrupted", name)] for name in ("SIGINT", "SIGTERM")])
def test_signal_ends_a_rank_that_waits(told):
    (told,) = told
    (name,) = told["job"]["args"]
    _left_nothing(told)
    assert told["statuses"] == [-getattr(signal, name), 0], told["err"]
    assert errors(told["err"][0]) == (["KeyboardInterrupt"] if name == "SIGINT" else [])
    assert errors(told["err"][1]) == []


@pytest.mark.parametrize("jobs", [[job(2, "faults.mismatched")]])
def test_calls_that_do_not_fit_together_are_told(told):
    """On each rank, which goes on with other groups."""
    (told,) = told
    _left_nothing(told)
    assert told["statuses"] == [0, 0], told["err"]
    for out in told["out"]:
        found = json.loads(out)["errors"]
        assert found.pop("fits") is None
        for case, words in {"size": ("40 bytes", "12,000,000 bytes"), "backward": ("all_reduce of 308 bytes",)}.items():
            kind, text = found[case]
            assert kind == "DistBackendError", (case, text)
            for word in ("rank 0", "rank 1", *words):
                assert word in text, (case, text)


@pytest.mark.parametrize("jobs", [[job(2, "faults.impossible")]])
def test_arguments_that_no_rank_can_use_are_refused(told):
    (told,) = told
    _left_nothing(told)
    assert told["statuses"] == [0, 0], told["err"]
    for out in map(json.loads, told["out"]):
        assert out["after"], "the group is of no use afterwards"
        for case, found in out["errors"].items():
            assert found, f"{case}: taken"
            kind, text = found
            assert kind in ("ValueError", "TypeError"), (case, found)
            assert "\n" not in text
