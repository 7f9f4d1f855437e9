"""The config: strict, with the nearest valid name, and values that are what they look like."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from psframe import optim, sync
from psframe.config import registry, schema
from psframe.datasets import TABLE as DATASETS
from psframe.errors import UserError
from tests.helpers.mistakes import MISTAKES

MINIMAL = {"name": "x", "model": "lenet", "dataset": "digits"}


def resolve(*overrides, **sections):
    return schema.resolve({**MINIMAL, **sections}, overrides)


def test_defaults():
    resolved = resolve()
    assert resolved.model == {"name": "lenet"}
    assert resolved.sync == {"mode": "sync_ps"}
    assert resolved.collective == {"name": "shared"}
    assert resolved.optimizer == {"name": "sgd"}
    assert resolved.train.reproducible == "fixed_workers"


def test_overrides_reach_into_sections_and_swap_strategies():
    resolved = resolve(
        "train.epochs=7",
        "optimizer.lr=1e-3",
        "sync.server=colocated",
        "model={name: cifar_quick}",
        "dataset=idx",
        "dataset.path=/d",
        sync="allreduce",
    )
    assert resolved.train.epochs == 7
    assert resolved.optimizer == {"name": "sgd", "lr": 1e-3}
    assert resolved.sync == {"mode": "allreduce", "server": "colocated"}
    assert resolved.model == {"name": "cifar_quick"}
    assert resolved.dataset == {"name": "idx", "path": "/d"}


def test_bare_name_replaces_the_section_and_a_key_does_not():
    sgd = {"name": "sgd", "lr": 0.1}
    assert resolve("optimizer=adam", optimizer=sgd).optimizer == {"name": "adam"}
    assert resolve("optimizer.name=adam", optimizer=sgd).optimizer == {"name": "adam", "lr": 0.1}


@pytest.mark.parametrize("override", ["collective=null", "collective.name=null", "collective={name: null}"])
def test_null_is_a_collective_though_yaml_reads_it_as_nothing(override):
    assert resolve(override).collective == {"name": "null"}


def test_schedule_may_be_a_bare_name():
    assert resolve("schedule=cosine", "schedule.warmup_epochs=1").schedule.name == "cosine"


def test_section_may_leave_its_default_name_out():
    assert resolve(sync={"server": "colocated"}).sync == {"mode": "sync_ps", "server": "colocated"}


@pytest.mark.parametrize(("overrides", "words"), MISTAKES)
def test_mistake_in_a_config_is_named(overrides, words):
    with pytest.raises(UserError) as caught:
        resolved = resolve(*overrides, train={"epochs": 2})
        from psframe import collectives
        from psframe.config import registry

        registry.bind("collective", collectives.TABLE, resolved.collective)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize("missing", ["model", "dataset"])
def test_model_and_dataset_are_required(missing):
    raw = {k: v for k, v in MINIMAL.items() if k != missing}
    with pytest.raises(UserError, match=f"must name a {missing}"):
        schema.resolve(raw)


def write(tmp_path, text):
    path = tmp_path / "my config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_name_is_that_of_the_file(tmp_path):
    assert schema.read(write(tmp_path, "model: lenet\ndataset: digits")).name == "my_config"


@pytest.mark.parametrize(("file", "name"), [("_x.yaml", "x"), ("é.yaml", "run"), ("a b.c.yaml", "a_b.c")])
def test_name_comes_of_any_file_name(tmp_path, file, name):
    (tmp_path / file).write_text("model: lenet\ndataset: digits")
    assert schema.read(str(tmp_path / file)).name == name


def test_yaml_numbers_are_numbers(tmp_path):
    text = "model: lenet\ndataset: digits\noptimizer: {lr: 1e-3}\nschedule: {gamma: 5E-1}"
    read = schema.read(write(tmp_path, text))
    assert read.optimizer["lr"] == 1e-3
    assert read.schedule.gamma == 0.5


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("model: lenet\nmodel: cifar_quick\ndataset: digits", "'model' again in line 2"),
        ("train: {epochs: 1, epochs: 2}", "'epochs' again"),
        ("model: [lenet", "YAML"),
        ("- a\n- b", "list"),
        ("", "NoneType"),
        ("model: !!python/object/apply:os.system ['true']\n", "YAML"),
        (b"\xff\xfe\x00", "UTF-8"),
        ("[" * 3000, "YAML"),
        ("? [a, b]\n: c", "YAML"),
    ],
)
def test_file_that_is_no_config(tmp_path, text, word):
    with pytest.raises(UserError, match=word):
        schema.read(write(tmp_path, text))


def test_missing_file_is_told(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        schema.read(str(tmp_path / "none.yaml"))
    with pytest.raises(UserError, match="directory"):
        schema.read(str(tmp_path))


def test_resolved_configs_resolve_to_themselves():
    import msgspec

    resolved = msgspec.to_builtins(resolve("train.epochs=3"))
    again = schema.resolve(yaml.safe_load(schema.to_yaml(resolved)))
    assert msgspec.to_builtins(again) == resolved


@given(st.text(max_size=60))
def test_override_of_any_kind_is_taken_or_told(text):
    try:
        resolve(text)
    except UserError as error:
        assert "\n" not in str(error).strip() or "\n" in text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*MINIMAL, "train", "sync", "mode", "epochs", "x"]), inner, max_size=4), max_leaves=8))  # fmt: skip # noqa: E501
def test_mapping_of_any_kind_is_taken_or_told(value):
    try:
        schema.resolve(value if isinstance(value, dict) else {**MINIMAL, "train": value})
    except UserError:
        pass


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("epochs=3", "did you mean 'train.epochs'?"),
        ("lr=0.1", "did you mean 'optimizer.lr'?"),
        ("resume=auto", "did you mean 'checkpoint.resume'?"),
        ("train.keep=3", "did you mean 'checkpoint.keep'?"),
        ("mode=allreduce", "did you mean 'sync.mode'?"),
        ("pipeline=2", "did you mean 'parallel.pipeline'?"),
        ("epoch=3", "valid: "),
    ],
)
def test_key_without_its_section_is_found(override, hint):
    with pytest.raises(UserError) as caught:
        resolve(override)
    assert hint in str(caught.value)


def test_hints_name_keys_that_there_are():
    for path in schema.IN_STRATEGIES:
        section, _, key = path.partition(".")
        table = {"optimizer": optim.TABLE, "sync": sync.TABLE, "dataset": DATASETS}[section]
        name = {"optimizer": "sgd", "sync": "sync_ps", "dataset": "idx"}[section]
        assert key == "mode" or key in registry.keywords(registry.load(section, table, name)), path


def test_paths_that_begin_at_home_are_written_in_full(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    idx = {"name": "idx", "path": "~/data", "own": ["~", "~/a", {"b": "~/b"}, 1]}
    found = resolve("record.dir=~/rr/x", dataset=idx, checkpoint={"resume": "~/r"})
    assert (found.record.dir, found.checkpoint.resume) == ("/home/me/rr/x", "/home/me/r")
    assert found.dataset["path"] == "/home/me/data"
    assert found.dataset["own"] == ["/home/me", "/home/me/a", {"b": "/home/me/b"}, 1]
    for kept in ("a~", "./~/x", "~x y/z"):
        assert resolve(f"record.dir={kept}").record.dir == kept
    with pytest.raises(UserError, match=r"must be in a user's home, got '~nobody-at-all/x'"):
        resolve("record.dir=~nobody-at-all/x")


@pytest.mark.parametrize(
    ("every_epochs", "every_seconds", "due"),
    [(0, 0, []), (1, 0, [1, 2, 3]), (2, 0, [2, 3]), (0, 9, [3]), (2, 9, [2, 3])],
)
def test_last_epoch_has_a_checkpoint_if_there_are_any(every_epochs, every_seconds, due):
    keys = schema.Checkpoint(every_epochs=every_epochs, every_seconds=every_seconds)
    assert [epoch for epoch in (1, 2, 3) if keys.is_due(epoch, 3)] == due
