"""Scripts of PyTorch, as they are, on the backend "psframe": what they end in is what they end in with gloo.

At two ranks to the last bit, since a sum of two has no order; at more, up to rounding.
"""

import json
import math
from importlib.metadata import entry_points

import pytest

from tests.helpers import torchrun
from tests.helpers.launcher import ROOT

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

SCRIPTS = ROOT / "tests" / "torch" / "scripts"
#: relative difference of losses at more than two ranks, of cases that sum in 16 bits; of all others
ROUNDED = {"bf16": 1e-2, "bf16_reduced": 1e-2, "fsdp1_bf16": 1e-2, "fp16_hook": 1e-3, "fp16_wrapped_hook": 1e-3}
CLOSE = 1e-4


def told(n, script, *args, launch=torchrun.run, timeout_s=300, **env):
    """Run a script; return by backend what rank 0 printed."""
    ended = launch(n, [SCRIPTS / f"{script}.py", *args], timeout_s, PYTHONWARNINGS="ignore", **env)
    lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith('{"backend"')]
    found = {line["backend"]: line["cases"] for line in lines}
    # gloo, which is the last one, is sometimes aborted by its own threads at the exit
    assert found.keys() == set(args[0].split(",")), ended
    assert ended.status == 0 or "terminate called without an active exception" in ended.err, ended
    return found


def numbers(losses):
    for loss in losses:
        if isinstance(loss, list):
            yield from numbers(loss)
        else:
            yield loss


def compare(n, ours, gloo):
    """Assert that cases ended the same, and all ranks with the same bits."""
    for case, results in ours.items():
        assert len(set(results.get("parameters", [0]))) == 1, f"{case}: ranks have different parameters"
        losses = list(numbers(results.get("losses", [])))
        assert all(map(math.isfinite, losses)), (case, losses)
        if case not in gloo:
            continue
        if n == 2:
            assert results == gloo[case], case
        else:
            expected = list(numbers(gloo[case].get("losses", [])))
            assert losses == pytest.approx(expected, rel=ROUNDED.get(case, CLOSE)), case


@pytest.mark.parametrize(
    ("n", "script"),
    [
        (2, "ddp"),
        *(
            pytest.param(2, script, marks=pytest.mark.full)
            for script in ("fsdp2", "resnet", "transformer", "zero", "pipeline")
        ),
        *(pytest.param(n, script, marks=pytest.mark.full) for n in (3, 4) for script in ("ddp", "fsdp2", "zero")),
        *(pytest.param(n, script, marks=pytest.mark.full) for n in (3, 5) for script in ("resnet", "pipeline")),
        *(pytest.param(n, "mesh", marks=pytest.mark.full) for n in (2, 4, 6)),
    ],
)
def test_script_trains_as_with_gloo(n, script):
    launch = torchrun.run if script == "ddp" else torchrun.forked
    found = told(n, script, "psframe,gloo", launch=launch)
    compare(n, found["psframe"], found["gloo"])


@pytest.mark.full
def test_compiled_models_train_as_with_gloo(tmp_path):
    """Compilers see the backend's methods, and what they make of a graph has its collectives."""
    found = told(2, "compile_ddp", "psframe,gloo", timeout_s=900, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    compare(2, found["psframe"], found["gloo"])


@pytest.mark.full
@pytest.mark.parametrize("how", ["sync", "async"])
def test_checkpoint_of_two_ranks_is_read_by_three(how, tmp_path):
    save, load = {"sync": ("save", "load"), "async": ("save_async", "load_async")}[how]
    saved = told(2, "checkpoint", "psframe", save, CHECKPOINT=str(tmp_path))["psframe"][save]
    read = told(3, "checkpoint", "psframe", load, CHECKPOINT=str(tmp_path))["psframe"][load]
    assert set(read["parameters"]) == set(saved["parameters"])
    assert len(set(read["parameters"])) == 1


@pytest.mark.full
def test_checkpoint_is_what_gloo_makes(tmp_path):
    found = told(2, "checkpoint", "psframe,gloo", CHECKPOINT=str(tmp_path))
    compare(2, found["psframe"], found["gloo"])


@pytest.mark.full
def test_training_starts_again_after_a_rank_is_killed(tmp_path):
    """From its last snapshot, with the parameters of a training that nothing has disturbed."""
    ends = {}
    for name, words in (("killed", []), ("whole", ["never"])):
        (tmp_path / name).mkdir()
        args = ["--max-restarts", "1", SCRIPTS / "elastic.py", "psframe", tmp_path / name, *words]
        ended = torchrun.run(2, args, 180)
        assert ended.status == 0, ended
        ends[name] = json.loads(ended.out.splitlines()[-1])
    assert (ends["killed"]["restarts"], ends["killed"]["begin"]) == (1, 3)
    assert (ends["whole"]["restarts"], ends["whole"]["begin"]) == (0, 0)
    assert ends["killed"]["parameters"] == ends["whole"]["parameters"]


@pytest.mark.full
def test_sparse_gradients_are_refused_in_a_sentence():
    ended = torchrun.forked(2, [SCRIPTS / "sparse.py", "psframe"], 120)
    assert ended.status != 0
    assert not ended.timed_out
    assert "psframe exchanges dense tensors" in ended.err


NAMED = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("BACKEND")
x = torch.ones(10)
dist.all_reduce(x)
if dist.get_rank() == 0:
    print(dist.get_backend(), x.sum().item())
dist.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.parametrize("name", ["psframe", "cpu:psframe"])
def test_backend_is_known_without_an_import(name, tmp_path):
    if not entry_points(group="torch.backends", name="psframe"):
        pytest.skip("psframe is not installed with its entry point: pip install -e .")
    (tmp_path / "named.py").write_text(NAMED.replace("BACKEND", name))
    ended = torchrun.run(2, [tmp_path / "named.py"], TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert ended.status == 0, ended
    assert ended.out.split() == [name, "20.0"]
