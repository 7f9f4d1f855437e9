"""Facts of a sound config, as ``psframe check`` gives them, and its verdict in words."""

import pytest

from psframe.starter.check import facts, in_words
from psframe.train.plan import without_ranks

TOLD = {
    "sound": True,
    "name": "tiny",
    "model": "tests.helpers.tiny:build",
    "dataset": "synthetic",
    "sync": "sync_ps",
    "collective": "shared",
    "n_params": 4 * 9 + 4 + 4 * 3 * 3 * 3 + 3,  # 4 maps of 6 x 6 pixels are pooled to 3 x 3
    "shape": [1, 6, 6],
    "n_classes": 3,
    "n_train": 60,
    "n_test": 12,
    "n_workers": None,
    "n_servers": None,
    "unused": [],
    "left": ["their number (give -n)", *without_ranks.LEFT],
}


@pytest.mark.parametrize(
    ("keys", "n_ranks", "other"),
    [
        ([], None, {}),
        (["name=mine"], 4, {"name": "mine", "n_workers": 3, "n_servers": 1}),
        (["sync=allreduce"], 4, {"sync": "allreduce", "n_workers": 4, "n_servers": 0}),
        (["sync=async_ps"], 4, {"sync": "async_ps", "collective": None, "n_workers": 3, "n_servers": 1}),
        (["sync={mode: allreduce, server: colocated}"], 1,
         {"sync": "allreduce", "n_workers": 1, "n_servers": 0, "unused": ["sync.server"]}),
        (["dataset.shape=[2, 4, 8]", "dataset.classes=5", "dataset.samples=25"], None,
         {"shape": [2, 4, 8], "n_classes": 5, "n_train": 25, "n_test": 5,
          "n_params": 4 * 2 * 9 + 4 + 4 * 2 * 4 * 5 + 5}),
    ],
)  # fmt: skip
def test_facts_are_those_of_the_config(config, keys, n_ranks, other):
    left = TOLD["left"] if n_ranks is None else [*without_ranks.LEFT]
    found = facts(config, without_ranks.check(config, keys, n_ranks))
    assert found == {**TOLD, "config": config, "left": left, **other}


def test_shape_of_pictures_that_are_cropped_is_what_the_network_takes(config, tmp_path):
    files = pytest.importorskip("tests.helpers.dataset_files", reason="Pillow, or h5py, is not installed")
    files.write_image_folder(tmp_path / "pictures", n=1)
    keys = [f"dataset={{name: image_folder, path: {tmp_path / 'pictures'}, size: [14, 21]}}"]
    found = facts(config, without_ranks.check(config, keys))
    assert found["shape"] == [3, 14, 21]
    assert found["n_params"] == 4 * 3 * 9 + 4 + 4 * 7 * 10 * 3 + 3


@pytest.mark.parametrize(
    ("keys", "n_ranks", "words"),
    [
        ([], None, "on synthetic (60 training and 12 test samples), sync_ps over shared\n# only ranks"),
        ([], 2, "sync_ps over shared, 1 worker\n# only ranks"),
        (["sync=async_ps"], 4, "async_ps, 3 workers\n# only ranks"),
        (["sync={mode: allreduce, server: colocated}"], 2, "2 workers\n# not used by this choice: sync.server\n# only"),
    ],
)
def test_verdict_in_words_has_what_there_is(config, keys, n_ranks, words):
    said = in_words(facts(config, without_ranks.check(config, keys, n_ranks)))
    assert said.startswith(f"{config} is sound: tests.helpers.tiny:build (151 parameters) on synthetic")
    assert words in said
