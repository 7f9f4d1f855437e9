"""Random headers and damaged bytes: read, or refused with a UserError, and nothing else."""

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from tests import dataset_files as write

FUZZ = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def survives(name: str, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(UserError):
        write.read_all(name, arguments)


@FUZZ
@given(st.binary(max_size=24))
def test_any_idx_header_is_read_or_refused(tmp_path, header):
    arguments = write.write_idx(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    for content in (header, b"\0\0\x08" + header, header + file.read_bytes()[len(header) :]):
        file.write_bytes(content)
        survives("idx", arguments)


FUZZED = {
    "idx-gz": ("idx", lambda root: write.write_idx(root, gz=True), "train-images-idx3-ubyte.gz"),
    "cifar10-bin": ("cifar10", write.write_cifar_bin, "data_batch_1.bin"),
    "cifar10-python": ("cifar10", write.write_cifar_python, "cifar-10-batches-py/data_batch_1"),
    "ts": ("har", write.write_ts, "Small_TRAIN.ts"),
    "npy": ("har", write.write_npy, "X_train.npy"),
    "hdf5": ("hdf5", write.write_hdf5, "data.h5"),
}


@pytest.mark.parametrize("kind", FUZZED)
def test_truncated_and_flipped_bytes_are_read_or_refused(kind, tmp_path):
    name, written, damaged = FUZZED[kind]
    arguments, file = written(tmp_path), tmp_path / damaged
    sound = file.read_bytes()

    @FUZZ
    @given(st.data())
    def damage(data: st.DataObject) -> None:
        content = bytearray(sound)
        # on flipped metadata libhdf5 itself may crash or never return, which no caller can mend
        for _ in range(0 if kind == "hdf5" else data.draw(st.integers(0, 4))):
            # headers lie in front
            at = data.draw(st.integers(0, 200) | st.integers(0, len(sound) - 1)) % len(sound)
            content[at] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content[: data.draw(st.integers(0, len(sound)) | st.just(len(sound)))])
        survives(name, arguments)

    damage()
