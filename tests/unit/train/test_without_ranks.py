"""Verdicts on configs without ranks; tests/commands/test_bad_input.py compares them with those of ranks."""

import pytest

from psframe.errors import UserError
from psframe.train.plan import without_ranks
from tests.helpers.launcher import ROOT

CONFIGS = [*sorted((ROOT / "configs").glob("*.yaml")), ROOT / "psframe" / "starter" / "quickstart.yaml"]
ANY = ["train.reproducible=any_workers", "train.global_batch=16"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_that_come_with_psframe_are_sound(path):
    try:
        verdict = without_ranks.check(str(path), [], 4)
    except UserError as error:
        if any(words in str(error) for words in ("must be installed", "does not exist", "cannot be imported")):
            pytest.skip(f"no data: {error}")
        raise
    if verdict.judged.choices["model"].name == "lenet":
        assert verdict.network.whole.n_params == 431_080


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("placement.activations={default: default, convl: ddr}", "got 'convl'; did you mean 'conv1'"),
        ("placement.gradients={default: default, '*.biass': ddr}", "got '*.biass'; "),
        ("placement.activations={conv1: ddr}", "placement.activations.conv1: default takes no such key"),
        ("placement.exchange={default: ddr, x: hbw}", "placement.exchange must be one place"),
        ("placement.gradients={default: 'os:getcwd'}", "default must name a placement"),
    ],
)
def test_places_that_no_tensor_can_have_are_refused(config, key, words):
    with pytest.raises(UserError) as told:
        without_ranks.check(config, [key])
    assert words in str(told.value)


@pytest.mark.parametrize("pattern", ["conv1", "conv1.kept", "*.scratch", "input", "0.conv2d", "dense*"])
def test_activations_that_ranks_may_have_are_sound(config, pattern):
    assert without_ranks.check(config, [f"placement.activations={{default: ddr, {pattern!r}: hbw}}"])


def test_roles_are_those_of_the_ranks(config):
    """One rank is alone; ranks of a network that is cut are those with one part of it."""
    for keys, n_ranks, n_workers, n_servers in (
        ([], 4, 3, 1),
        (["sync.servers=2"], 3, 1, 2),
        (["sync.server=colocated"], 4, 4, 1),
        (["sync=allreduce"], 4, 4, 0),
        ([], 1, 1, 0),
        (["parallel.pipeline=2"], 6, 3, 0),
    ):
        roles = without_ranks.check(config, keys, n_ranks).roles
        assert (roles.n_workers, len(roles.servers)) == (n_workers, n_servers), (keys, n_ranks)


def test_keys_without_effect_are_named_if_they_were_given(config):
    keys = ["sync.mode=async_ps", "sync.servers=2", "collective=buffer", "train.blocks=4"]
    assert without_ranks.check(config, keys).judged.unused == ["sync.servers", "collective", "train.blocks"]
    assert without_ranks.check(config, ["sync.mode=async_ps"]).judged.unused == []


def test_config_may_build_on_another(config, tmp_path):
    (tmp_path / "above.yaml").write_text("base: tiny.yaml\nsync: easgd\n")
    assert without_ranks.check(str(tmp_path / "above.yaml"), []).judged.choices["sync"].name == "easgd"


def test_only_ranks_can_tell_their_number_and_what_own_strategies_do(config):
    own = ["collective=psframe.collectives.buffer:Buffer"]
    assert without_ranks.check(config, own).left == [
        "their number (give -n)",
        *without_ranks.LEFT,
        "what psframe.collectives.buffer:Buffer asks of its ranks",
    ]
    assert without_ranks.check(config, own, 1).left == [*without_ranks.LEFT]  # it has no one to exchange with


#: overrides, the number of ranks, and words of the sentence; others are ``BAD`` in tests/commands/test_bad_input.py
MISTAKES = {
    "codec": (["collective={name: buffer, compression: zip}"], 4, "there is no 'zip'"),
    "store": (["sync={mode: easgd, store: shelf}"], 4, "there is no 'shelf'"),
    "placement": (["placement.data=tests.helpers.tiny:build"], 4, "placement.data"),
    "crash": (["fault.crash_at=lunch"], None, "fault.crash_at"),
    "package": (["dataset=tests.helpers.wrong:nothing"], None, "has no 'nothing'"),
    "base": (["base=x"], None, "base must stand in a config's file"),
    "cut network": (["parallel.pipeline=2", "sync=easgd"], None, "all replicas step together"),
    "precision": (["train.precision=bf16", "nn.kernels=blas"], None, "train.precision: bf16 must have kernels that"),
    "layers": (["train.precision=bf16", "model=tests.helpers.tiny:mixed"], None, "layer 1, Doubled, which does not"),
    "stages": (["parallel.pipeline=64"], None, "parallel.pipeline must leave a layer for every stage"),
    "shards": (["parallel.model=64"], None, "parallel.model"),
    "grid": (["parallel.pipeline=2"], 3, "must divide the number of ranks, 3"),
    "blocks": (ANY, 10, "a block for every worker"),
    "servers": (["sync.servers=2"], 2, "sync.servers must leave a worker"),
    "backup workers": (["sync.backup_workers=1"], 2, "sync.backup_workers must be fewer"),
    "samples": ([], 99, "60 samples for 98 workers"),
    "group": (["optimizer.groups=[{tensors: '*.bais'}]"], None, "did you mean '*.bias'?"),
    "group's key": (["optimizer.groups=[{tensors: '*', rate: 2}]"], None, "groups[0].rate is no key of a group"),
    "norms of parts": (["optimizer=lars", "parallel.model=2"], None, "optimizer=lars needs norms of whole tensors"),
    "norm of stages": (["optimizer.clip_norm=1", "parallel.pipeline=2"], None, "clip_norm needs ranks that have the"),
    "norms over one's own": (["optimizer=lamb", "collective=tests.helpers.own:Rows"], 4, "keeps_tensors"),
    "rise": (["schedule={name: one_cycle, warmup_epochs: 1}"], None, "schedule.warmup_epochs must be 0 with one_cycle"),
    "slow rank": (["fault.slow_rank=0"], 2, "fault.slow_rank"),
}


@pytest.mark.parametrize(("keys", "n_ranks", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_told(config, keys, n_ranks, said):
    with pytest.raises(UserError) as caught:
        without_ranks.check(config, keys, n_ranks)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["servers", "backup workers", "samples", "grid", "blocks", "slow rank"])
def test_rules_of_the_number_of_ranks_need_it(config, name):
    keys, _, _ = MISTAKES[name]
    without_ranks.check(config, keys)


@pytest.mark.parametrize("name", ["codec", "store", "servers", "backup workers"])
def test_rules_of_an_exchange_do_not_hold_for_one_rank(config, name):
    keys, _, _ = MISTAKES[name]
    without_ranks.check(config, keys, 1)


def test_run_to_continue_must_have_the_same_config(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("name: tiny\nmodel: {name: lenet}\n")
    with pytest.raises(UserError, match=r"got other values of .*model.name"):
        without_ranks.check(config, [f"checkpoint.resume={tmp_path / 'run'}"])
