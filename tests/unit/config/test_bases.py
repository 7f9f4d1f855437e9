"""Configs that build on others by ``base``: what is merged, what is replaced, and chains that are refused."""

import os

import msgspec
import pytest

from psframe.config import bases, schema
from psframe.errors import UserError

BASE = """
name: below
model: {name: lenet}
dataset: {name: idx, path: /d}
train: {epochs: 7, seed: 3}
optimizer: {name: sgd, lr: 0.5, momentum: 0.9}
sync: {server: colocated}
collective: null
schedule: cosine
placement: {parameters: {numa: [1], huge_pages: 2M}, data: ddr, hbw_nodes: [1, 2]}
"""


def read(tmp_path, above="", *overrides, below=BASE):
    (tmp_path / "below.yaml").write_text(below)
    (tmp_path / "above.yaml").write_text(f"base: below.yaml\n{above}")
    return schema.read(str(tmp_path / "above.yaml"), overrides)


def test_base_alone_gives_all_but_the_name(tmp_path):
    above = read(tmp_path)
    below = schema.read(str(tmp_path / "below.yaml"))
    assert (above.name, below.name) == ("above", "below")
    assert msgspec.structs.replace(above, name="below") == below
    assert "base" not in msgspec.to_builtins(above)


def test_mappings_are_merged_and_all_else_replaces(tmp_path):
    found = read(tmp_path, "name: mine\ntrain: {epochs: 2}\nplacement: {hbw_nodes: [3]}", "train.batch_size=8")
    assert found.name == "mine"
    assert (found.train.epochs, found.train.seed, found.train.batch_size) == (2, 3, 8)
    assert found.placement.hbw_nodes == [3]
    assert found.placement.data == {"name": "ddr"}


def test_overrides_come_last(tmp_path):
    assert read(tmp_path, "optimizer: {lr: 2}", "optimizer.lr=3").optimizer["lr"] == 3
    assert read(tmp_path, "", "optimizer=adam").optimizer == {"name": "adam"}


@pytest.mark.parametrize(
    ("above", "section", "expected"),
    [
        ("optimizer: adam", "optimizer", {"name": "adam"}),
        ("optimizer: sgd", "optimizer", {"name": "sgd"}),
        ("optimizer: {name: adam}", "optimizer", {"name": "adam"}),
        ("optimizer: {name: sgd, lr: 1}", "optimizer", {"name": "sgd", "lr": 1, "momentum": 0.9}),
        ("optimizer: {lr: 1}", "optimizer", {"name": "sgd", "lr": 1, "momentum": 0.9}),
        ("sync: {mode: sync_ps, servers: 2}", "sync", {"mode": "sync_ps", "server": "colocated", "servers": 2}),
        ("sync: {mode: easgd}", "sync", {"mode": "easgd"}),
        ("collective: {compression: none}", "collective", {"name": "null", "compression": "none"}),
        ("collective: {name: null}", "collective", {"name": "null"}),
        ("collective: buffer", "collective", {"name": "buffer"}),
        ("model: {width: 2}", "model", {"name": "lenet", "width": 2}),
    ],
)
def test_section_of_a_strategy_is_replaced_by_a_bare_or_another_name(tmp_path, above, section, expected):
    assert getattr(read(tmp_path, above), section) == expected


def test_schedule_of_another_name_begins_anew(tmp_path):
    assert read(tmp_path, "schedule: {warmup_epochs: 2}").schedule.name == "cosine"
    below = f"{BASE.replace('schedule: cosine', 'schedule: {name: step, gamma: 0.5}')}"
    assert read(tmp_path, "schedule: {name: constant}", below=below).schedule.gamma == 0.1


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        ("{numa: [2]}", {"name": "numa", "nodes": [2], "huge_pages": "2M"}),
        ("{interleave: [0, 1]}", {"name": "interleave", "nodes": [0, 1]}),
        ("{huge_pages: 1G}", {"name": "numa", "nodes": [1], "huge_pages": "1G"}),
        ("hbw", {"name": "hbw"}),
    ],
)
def test_placement_of_a_role_is_merged_as_a_strategy(tmp_path, above, expected):
    found = read(tmp_path, f"placement: {{parameters: {above}}}")
    assert found.placement.parameters == expected
    assert found.placement.data == {"name": "ddr"}


def test_path_is_relative_to_the_file_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "root.yaml").write_text(BASE)
    (tmp_path / "a" / "middle.yaml").write_text("base: ../root.yaml\ntrain: {seed: 4}")
    (tmp_path / "a" / "b" / "top.yaml").write_text("base: ../middle.yaml\ntrain: {epochs: 1}")
    for folder, path in ((tmp_path, "a/b/top.yaml"), (tmp_path / "a" / "b", "top.yaml")):
        monkeypatch.chdir(folder)
        found = schema.read(path)
        assert (found.name, found.train.seed, found.train.epochs) == ("top", 4, 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a" / "home.yaml").write_text("base: ~/root.yaml")
    assert schema.read(str(tmp_path / "a" / "home.yaml")).train.epochs == 7


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("none.yaml", ["the base of", "above.yaml", "none.yaml", "No such file"]),
        (".", ["the base of", "directory"]),
        ("[a]", ["base must be the path of a config", "['a']", "above.yaml"]),
        ("''", ["base must be the path of a config", "''"]),
        ("3", ["base must be the path of a config", "got 3"]),
        ("above.yaml", ["circle", "above.yaml -> "]),
        ("back.yaml", ["circle", "back.yaml -> "]),
        ("linked.yaml", ["circle", "linked.yaml"]),
        ("list.yaml", ["list.yaml must hold keys and values", "list"]),
        ("broken.yaml", ["broken.yaml must be YAML", "line 1"]),
        ("bytes.yaml", ["the base of", "UTF-8", "bytes.yaml"]),
        ("~nobody-at-all/x", ["in a user's home"]),
        ('"a\\0b"', ["no character NUL", "line 1"]),
        ("pipe", ["the base of", "no regular file"]),
    ],
)
def test_base_that_is_none_is_told(tmp_path, base, words):
    (tmp_path / "above.yaml").write_text(f"base: {base}\nmodel: lenet\ndataset: digits")
    (tmp_path / "back.yaml").write_text("base: above.yaml")
    (tmp_path / "linked.yaml").symlink_to("above.yaml")
    (tmp_path / "list.yaml").write_text("- a")
    (tmp_path / "broken.yaml").write_text("[")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError) as caught:
        schema.read(str(tmp_path / "above.yaml"))
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("n_bases", [bases.MAX_BASES, bases.MAX_BASES + 1])
def test_chain_has_a_largest_length(tmp_path, n_bases):
    for number in range(n_bases):
        (tmp_path / f"{number}.yaml").write_text(f"base: {number + 1}.yaml\ntrain: {{epochs: {number + 1}}}")
    (tmp_path / f"{n_bases}.yaml").write_text("model: lenet\ndataset: digits")
    if n_bases == bases.MAX_BASES:
        assert schema.read(str(tmp_path / "0.yaml")).train.epochs == 1
    else:
        with pytest.raises(UserError, match=r"at most 16 bases.*17\.yaml"):
            schema.read(str(tmp_path / "0.yaml"))


def test_base_on_the_command_line_is_refused(tmp_path):
    with pytest.raises(UserError, match="base must stand in a config's file"):
        read(tmp_path, "", "base=x.yaml")


AUTO = {"parameters", "gradients", "optimizer", "activations", "exchange"}


def by_auto(found):
    return {role for role in (*AUTO, "data") if getattr(found.placement, role) == {"name": "auto"}}


@pytest.mark.parametrize("where", ["file", "override", "base"])
def test_auto_for_all_roles_leaves_what_else_the_section_says(tmp_path, where):
    rest = "verify: error, hbw_nodes: [1, 2], data: ddr"
    if where == "file":
        found = read(tmp_path, "placement: auto")
    elif where == "override":
        found = read(tmp_path, f"placement: {{{rest}}}", "placement=auto")
    else:
        below = BASE.replace(BASE[BASE.index("placement") :], "placement: auto\n")
        found = read(tmp_path, f"placement: {{{rest}}}", below=below)
        assert by_auto(read(tmp_path, "", below=below)) == AUTO
    assert by_auto(found) == AUTO
    assert found.placement.data == {"name": "ddr"}
    assert found.placement.hbw_nodes == [1, 2]


def test_one_role_of_a_plan_for_all_may_be_placed_otherwise(tmp_path):
    found = read(tmp_path, "placement: auto", "placement.gradients=ddr", "placement.verify=error")
    assert by_auto(found) == AUTO - {"gradients"}
    assert found.placement.verify == "error"


@pytest.mark.parametrize("below", ["{default: ddr, 'conv*': hbw}", "hbw", "{numa: [1]}"])
def test_patterns_replace_the_base_since_their_order_counts(tmp_path, below):
    text = BASE.replace("{numa: [1], huge_pages: 2M}", below)
    found = read(tmp_path, "placement: {parameters: {default: {numa: [0]}, conv1: ddr}}", below=text)
    assert found.placement.parameters == {
        "name": "by_tensor",
        "default": {"numa": [0]},
        "tensors": {"conv1": "ddr"},
    }
