"""``psframe tune`` over real ranks: searches, what they write, and how they end."""

import json
import os
import signal
import subprocess
import time

import msgspec
import psutil
import pytest
import yaml

from psframe.predict import machine, measure
from psframe.record import tuned as cache
from psframe.tune.race import LEAST_ROUNDS
from tests.helpers import forked
from tests.helpers.launcher import ROOT, train
from tests.helpers.live import heed, is_rank

SMALL = """\
name: small
model: tests.helpers.tiny:build
dataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 480}
train: {epochs: 1, batch_size: 8}
optimizer: {lr: 0.05}
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL + f"record: {{dir: {tmp_path / 'runs'}}}\n")
    return str(tmp_path / "small.yaml")


def launcher_of(mpi):
    return " ".join(mpi.command(1, [])[: -len(["-n", "1", mpi.python])])


def words(mpi, *arguments):
    return [str(mpi.python), "-m", "psframe.tune", *map(str, arguments), "--mpirun", launcher_of(mpi)]


def tune(mpi, *arguments, timeout_s=900, **env):
    keys = {"timeout_s": timeout_s, "env": {**os.environ, **env}, "python": mpi.python}
    return forked.command(*words(mpi, *arguments)[2:], **keys)


def runs(folder):
    return [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in sorted(folder.glob("runs/*"))]


def test_search_ends_with_a_config_that_runs_and_is_found_again(mpi, small, tmp_path):
    out, env = tmp_path / "out", {cache.VARIABLE: str(tmp_path / "cache")}
    ended = tune(mpi, small, "--ranks", "3,2", "--vary", "affinity=numa,none", "--out", out, **env)
    assert ended.returncode == 0, ended
    found = json.loads((out / "tune.json").read_text())
    best = found["ways"][0]
    assert best["samples_per_s"] > 0
    assert (found["global_batch"], found["n_train"]) == (16, 480)
    for way in found["ways"]:  # two workers of eight samples, however they are made up
        servers = way["n_ranks"] > 1 and way["settings"].get("sync.server", "dedicated") == "dedicated"
        assert (way["n_ranks"] - servers) * (way["batch_size"] or 8) == 16, way
    tuned = out / "tuned.yaml"
    assert f" -n {best['n_ranks']} python -m psframe.train {tuned}" in ended.stdout
    content = yaml.safe_load(tuned.read_text())
    assert content["name"] == "small"
    trained = train(mpi, best["n_ranks"], tuned, "--quiet")
    assert trained.status == 0, trained
    run = [mpi.python, "-m", "psframe.run", "-n", "3", small, "tuned=auto", "--mpirun", launcher_of(mpi)]
    again = subprocess.run(run, capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, **env})
    assert again.returncode == 0, again
    assert "tuned=auto: " in again.stdout
    # on a busy machine ways on three ranks may be out before they are measured often enough to be kept
    sure = [best, *(way for way in found["ways"][1:] if way["ratio"]["n"] >= LEAST_ROUNDS)]
    assert ("nothing was tuned" not in again.stdout) == any(way["n_ranks"] == 3 for way in sure), again
    of_tuned, of_auto = runs(tmp_path)
    assert of_tuned["global_batch"] == of_auto["global_batch"] == 16
    other = train(mpi, 2, small, "tuned=auto", "--quiet", **env)
    assert (other.status, "nothing was tuned for this config on 2 rank(s)" in other.out) == (0, True), other
    for path in (tmp_path / "cache").rglob("*.json"):  # what is damaged is no mistake of the user's
        path.write_text(json.dumps({**json.loads(path.read_text()), "overrides": ["nope=3"]}))
    damaged = train(mpi, best["n_ranks"], small, "tuned=auto", "--quiet", **env)
    assert (damaged.status, "nothing was tuned" in damaged.out) == (0, True), damaged


@pytest.mark.full
def test_profile_of_the_machine_learns_from_a_search(mpich, small, tmp_path):
    path = str(tmp_path / "here.yaml")
    machine.write(path, msgspec.structs.replace(machine.read("a64fx"), title=measure.this(), memory="hbw"))
    out, env = tmp_path / "out", {cache.VARIABLE: str(tmp_path)}
    narrow = ["--vary", "affinity=numa", "collective.name=shared", "collective.reducers=cores"]
    ended = tune(mpich, small, *narrow, "--ranks", "3,2", "--machine", path, "--out", out, **env)
    assert ended.returncode == 0, ended
    checks = machine.read(path).checks
    assert checks
    assert all(check.what.startswith("tests.helpers.tiny:build, batch ") for check in checks)
    figures = {
        way["n_ranks"]: 480 / way["samples_per_s"] for way in json.loads((out / "tune.json").read_text())["ways"]
    }
    assert {check.ranks for check in checks} <= figures.keys()
    assert "corrected by all others of these" in ended.stdout
    other = tune(mpich, small, "--machine", "a64fx", "--out", tmp_path / "other", **env)
    assert (other.returncode, "must have the profile of this machine" in other.stderr) == (2, True), other


@pytest.mark.full
def test_search_that_was_broken_off_goes_on(mpich, small, tmp_path):
    out = tmp_path / "out"
    command = words(mpich, small, "--ranks", "2,3", "--out", out)
    env = {**os.environ, cache.VARIABLE: str(tmp_path)}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    journal, until = out / "journal.jsonl", time.monotonic() + 120
    while not journal.exists() or len(journal.read_text().splitlines()) < 12:
        assert time.monotonic() < until, "the search does not begin"
        time.sleep(0.05)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    assert f"--out {out} goes on" in told
    assert not psutil.wait_procs(ranks, timeout=60)[1], "ranks are left"
    before = journal.read_text().splitlines()
    ended = tune(mpich, small, "--ranks", "2,3", "--out", out, **env)
    assert ended.returncode == 0, ended
    assert journal.read_text().splitlines()[: len(before) - 1] == before[:-1]


@pytest.mark.full
def test_rank_that_dies_takes_its_way_out_of_the_race(mpich, small, tmp_path):
    """The others are built again in new ranks, and the search ends; what users' code prints does not disturb it."""
    (tmp_path / "own.py").write_text(
        "import os\nfrom psframe.collectives.buffer import Buffer\nfrom tests.helpers import tiny\n\n"
        "class Dies(Buffer):\n    def broadcast(self, params):\n        os.kill(os.getpid(), 9)\n\n"
        "def build(input_shape, n_classes):\n    print('{}')\n"
        "    print('{\"refused\": \"never\"}', end='', flush=True)\n    return tiny.build(input_shape, n_classes)\n"
    )
    vary = ["--vary", "collective.name='shared','own:Dies'", "--vary", "affinity=numa", "collective.reducers=cores"]
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", cache.VARIABLE: str(tmp_path)}
    ended = tune(mpich, small, "model=own:build", "--ranks", "2", *vary, "--out", tmp_path / "out", **env)
    assert ended.returncode == 0, ended
    found = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert found["failed"]
    assert all("own:Dies" in label for label in found["failed"])
    assert "collective.name" not in found["ways"][0]["settings"]


@pytest.mark.full
def test_batch_that_is_varied_is_not_found_by_who_did_not_ask(mpich, small, tmp_path):
    env = {cache.VARIABLE: str(tmp_path)}
    fast = ["--vary", "affinity=numa", "collective.name=shared", "collective.reducers=cores"]
    ended = tune(mpich, small, *fast, "--vary", "train.batch_size=64", "--ranks", "2", "--out", tmp_path / "out", **env)
    assert ended.returncode == 0, ended
    content = yaml.safe_load((tmp_path / "out" / "tuned.yaml").read_text())
    found = train(mpich, 2, small, "tuned=auto", "collective.name=shared", "collective.reducers=cores", **env)
    assert found.status == 0, found
    assert runs(tmp_path)[-1]["global_batch"] == 8
    assert content["train"]["batch_size"] in (8, 64)


def test_killed_search_leaves_no_ranks(mpich, small, tmp_path):
    command = words(mpich, small, "--ranks", "2", "--out", tmp_path / "out")
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.DEVNULL, env={**os.environ, cache.VARIABLE: str(tmp_path)}
    )
    until = time.monotonic() + 300
    while len(ranks := list(filter(is_rank, psutil.Process(process.pid).children(recursive=True)))) < 2:
        assert time.monotonic() < until, "no ranks are started"
        time.sleep(0.05)
    process.kill()
    process.wait()
    _, left = psutil.wait_procs(ranks, timeout=60)
    assert not left


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.yaml"], "a config must be a readable file, got 'nowhere.yaml'"),
        (["configs/quickstart.yaml", "--ranks", "2,none"], "--ranks must be whole numbers"),
        (["configs/quickstart.yaml", "--budget", "10"], "--budget must be a time as 90s, 10m or 1h, got '10'"),
        (["configs/quickstart.yaml", "--budget", "0s"], "--budget must be a time"),
        (["configs/quickstart.yaml", "--vary", "affinty"], "did you mean 'affinity'"),
        (["configs/quickstart.yaml", "--for", "accuracy"], "--for must be epoch_s, samples_per_s or METRIC=VALUE"),
        (["configs/quickstart.yaml", "--for", "epoch_s=3"], "--for must be"),
        (["configs/quickstart.yaml", "--for", "accuracy=high"], "--for must be"),
        (["configs/quickstart.yaml", "--sampler", "tpee", "--for", "accuracy=0.9"], "did you mean 'tpe'?"),
        (["configs/quickstart.yaml", "--sampler", "tpe"], "proposes settings that reach a target, got none"),
        (["configs/quickstart.yaml", "--out", "configs"], "--out must be a new or empty folder, got 'configs'"),
        (
            ["configs/quickstart.yaml", "sync.mode=nix", "--out", "{tmp}/out", "--ranks", "2"],
            "sync.mode: there is no 'nix'",
        ),
        (["configs/quickstart.yaml", "nix", "--out", "{tmp}/out", "--ranks", "2"], "key.path=value"),
        ([], "it names no config"),
    ],
)
def test_mistakes_are_told_in_one_sentence(mpich, arguments, told, tmp_path):
    ended = tune(mpich, *(a.format(tmp=tmp_path) for a in arguments))
    assert ended.returncode == 2, ended
    assert told in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("psframe tune: ")]
    assert len(lines) == 1, ended.stderr


def test_word_that_is_no_choice_is_told(mpich, small):
    ended = train(mpich, 2, small, "tuned=always")
    assert ended.status == 2
    assert ended.err.strip() == "psframe: tuned must be auto or none, got 'always'; give tuned=auto"


def test_tune_refuses_under_mpirun(mpich, small):
    ended = subprocess.run(
        mpich.command(2, ["-m", "psframe.tune", small]), capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert ended.returncode == 2
    assert "starts mpirun itself" in ended.stderr


@pytest.mark.full
@pytest.mark.parametrize("sampler", ["combinations", "tpe"])
def test_search_for_a_target_ends_with_settings_that_reach_it(mpich, small, tmp_path, sampler):
    if sampler == "tpe":
        pytest.importorskip("optuna", reason="no Optuna: pip install optuna")
    out, env = tmp_path / "out", {cache.VARIABLE: str(tmp_path)}
    narrow = ["--vary", "affinity=numa", "--vary", "optimizer.lr=0.05,0.1", "--vary", "train.batch_size=8"]
    goal = ["--for", "accuracy=0.9", "--sampler", sampler]
    narrow += ["--ranks", "2", "collective.name=shared", "collective.reducers=cores"]
    ended = tune(mpich, small, "train.epochs=30", *goal, *narrow, "--out", out, **env)
    assert ended.returncode == 0, ended
    found = json.loads((out / "tune.json").read_text())["goal"]
    assert {trial["settings"].get("optimizer.lr") for trial in found["trials"]} == {None, "0.1"}
    reached = [s for by_seed in found["seconds"] for s in by_seed["seconds"] if s is not None]
    assert reached
    first = found["trials"][0]["curve"]
    assert first[-1][1] >= 0.9 > max([value for _, value in first[:-1]], default=0.0)
    content = yaml.safe_load((out / "tuned.yaml").read_text())
    assert content["optimizer"]["lr"] == float(found["best"]["settings"].get("optimizer.lr", 0.05))
    assert "seconds of training to accuracy 0.9, by seed:" in ended.stdout
    journal = (out / "journal.jsonl").read_bytes()
    again = tune(mpich, small, "train.epochs=30", *goal, *narrow, "--out", out, **env)
    assert (out / "journal.jsonl").read_bytes() == journal
    assert again.stdout.splitlines()[3:] == ended.stdout.splitlines()[3:], "all of it is answered from the journal"
