"""Whatever a file or a string from outside holds: it is read, or refused in a sentence, soon and in little memory.

The targets of tests/fuzz, by Hypothesis: damaged copies of sound inputs, and what Atheris found before.
"""

import contextlib
import importlib.util
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS
from tests.helpers.launcher import ROOT
from tests.helpers.suite import examples

FUZZ = settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MAX_S = 60  # of one input, which takes milliseconds: whether it ends at all
MAX_KB = 1 << 20  # by which one target's inputs, of kilobytes, may raise this process's peak
CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())

#: header integers that overflow, wrap, or ask for more than there is
EXTREMES = [b"\0" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7, b"\0\0\0\1", b"\xff\xff\xff\x7f", b"\1"]
#: and what means much in text
WORDS = [b"[", b"{" * 50, b"&a [*a]", b"!!int ''", b"9" * 5000, b"1e999", b"-1", b"nan", b"\x1b[31m", b"\n", b"%", b"'"]


def expired(*_):
    raise AssertionError(f"an input was not read in {MAX_S} s")


@contextlib.contextmanager
def bounded():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGALRM, expired)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MAX_KB, f"the inputs took {grown >> 10} MiB"


@st.composite
def damaged(draw, sound):
    """A sound input with bytes changed, put in, taken out, and its end cut off."""
    content = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, 200) | st.integers(0, len(content))) % (len(content) + 1)  # headers lie in front
        put = draw(st.sampled_from(EXTREMES + WORDS) | st.binary(max_size=8))
        content[at : at + draw(st.sampled_from([0, len(put), 1, 20]))] = put
    return bytes(content[: draw(st.integers(0, len(content)) | st.just(len(content)))])


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs(name, tmp_path):
    prepared = TARGETS[name](tmp_path)

    @FUZZ
    @given(st.binary(max_size=60) | damaged(prepared.seeds))
    def one(data):
        signal.alarm(MAX_S)
        prepared.read(data)

    with bounded():
        for seed in prepared.seeds:
            signal.alarm(MAX_S)
            prepared.read(seed)
        one()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_inputs_found_before(path, tmp_path):
    prepared = TARGETS[path.parent.name](tmp_path)
    with bounded():
        signal.alarm(MAX_S)
        prepared.read(path.read_bytes())


def test_corpora_all_have_a_target():
    assert {path.parent.name for path in KEPT} <= set(TARGETS)


def by_atheris(name, seconds, corpus):
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("no Atheris: pip install psframe[fuzz]")
    words = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds), "--corpus", str(corpus)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 600, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    assert "nothing found" in ended.stdout
    return int(ended.stdout.split(":")[1].split()[0].replace(",", ""))


def test_atheris_tries_inputs(tmp_path):
    assert by_atheris("launcher", 2, tmp_path) > 100


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_atheris_tries_inputs_for_an_hour(name, tmp_path):
    assert by_atheris(name, 3600, tmp_path) > 1000
