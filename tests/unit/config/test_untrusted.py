"""What psframe reads from outside is bounded, leads nowhere else, and runs nothing."""

import ast
import gzip
import os
import socket
import stat
import tempfile
import threading
import zlib
from struct import pack

import h5py
import numpy as np
import pytest
from PIL import Image

from psframe.cluster import node_channel
from psframe.config import schema, untrusted, untrusted_hdf5
from psframe.errors import MAX_SAID, UserError
from psframe.record import metrics
from psframe.report.make import report
from tests.helpers import dataset_files as write
from tests.helpers import report_files
from tests.helpers.modules import MODULES
from tests.helpers.untrusted import HDF5, refuse


def calls(module):
    """Yield the dotted name of each function that a module calls, and the names of its keyword arguments."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {keyword.arg for keyword in node.keywords}


#: who reads JSON that this job's own ranks wrote, or catches all that damaged JSON raises
JSON = (
    "psframe.config.untrusted",
    "psframe.report.read",
    "psframe.report.tables",
    "psframe.cluster.node_channel",
    "psframe.cluster.flight.keeper",  # of its own ranks
    "psframe.cluster.cluster",
)
JSON += (
    "psframe.bench.sweep",
    "psframe.bench.torch",
    "psframe.bench.torch_rank",
    "psframe.record.checkpoint",
    "psframe.record.writer",
    "psframe.tune.jobs",
    "psframe.tune.ranks",
    "psframe.virtual.apart",  # of its own child
    "psframe.virtual.engines",  # of its own script
)
NEVER = ("eval", "exec", "np.load", "np.fromfile", "np.genfromtxt", "torch.load", "yaml.safe_load")


def test_files_are_neither_unpickled_nor_evaluated():
    """Ranks unpickle what each other say (``cluster``, mpi4py), and what their user's own script sends them (``api``);
    so do virtual ranks.

    No file is read by what can run code.
    """
    found = [(module, name, keywords) for module in MODULES for name, keywords in calls(module)]
    assert len(found) > 1000
    assert not [call for call in found if call[1] in NEVER or "allow_pickle" in call[2]]
    assert {module for module, name, _ in found if name.startswith(("pickle.", "marshal."))} == {
        "psframe.cluster.cluster",
        "psframe.api.channel",
        "psframe.api.objects",
        "psframe.virtual.meetings",
    }
    assert {module for module, name, _ in found if name == "yaml.load"} == {"psframe.config.strict_yaml"}
    assert {module for module, name, _ in found if name == "json.loads"} <= set(JSON)


@pytest.fixture(params=["pipe", "device", "folder", "loop"])
def odd(request, tmp_path):
    """A path that is there and is no regular file."""
    path = tmp_path / "odd"
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(path),
    }[request.param]()
    return path


def test_path_that_is_no_file_is_not_waited_for(odd):
    of_run = lambda: metrics.read(odd.parent, odd.name)  # noqa: E731 - in one line with the others
    for read in (lambda: untrusted.content(odd, 10), lambda: untrusted_hdf5.opened(odd), of_run):
        with pytest.raises(OSError, match=r"regular file|directory|symbolic|a link"):
            read()
    refuse(lambda: schema.read(str(odd)), "readable file", str(odd))
    refuse(lambda: report([str(odd)]), str(odd))


@pytest.mark.parametrize("name", ["metrics.jsonl", "usage.jsonl", "config.yaml"])
def test_pipe_in_a_run_is_told(name, tmp_path):
    run = report_files.run(tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    try:
        page, _ = report([str(run)])
    except UserError as error:  # without metrics there is nothing to show
        page = str(error)
    assert "it is no regular file" in page


def test_file_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert untrusted.content(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        untrusted.content(tmp_path / "file", 4)


def test_config_of_any_size_is_not_read(tmp_path):
    (tmp_path / "config.yaml").write_bytes(b"a")
    os.truncate(tmp_path / "config.yaml", 1 << 40)
    refuse(lambda: schema.read(str(tmp_path / "config.yaml")), "1,048,576 bytes")
    refuse(lambda: schema.read("a\0b"), "readable file")


def test_sentence_is_one_line_that_a_terminal_shows_as_it_is():
    assert str(UserError("a\x1b[31m\n\udcffb; é–")) == "a\\x1b[31m\\n\\udcffb; é–"
    assert len(str(UserError("x" * 10**6))) < 2 * MAX_SAID


def test_table_of_our_own_stays_one():
    assert str(UserError("it must fit,\n got \x1b[2J", "node  free\n   1     2")) == (
        "it must fit,\\n got \\x1b[2J\nnode  free\n   1     2"
    )
    refuse(lambda: schema.resolve({"model": "lenet", "\x1b[31m": 1}), "\\x1b")


@pytest.mark.parametrize("what", HDF5)
@pytest.mark.parametrize("place", ["train/images", "train/labels"])
def test_hdf5_leads_nowhere_and_claims_no_more_than_it_holds(what, place, tmp_path):
    put, word = HDF5[what]
    arguments = write.write_hdf5(tmp_path)
    with h5py.File(tmp_path / "data.h5", "r+") as file:
        del file[place]
        put(file, place)
    refuse(lambda: write.read_all("hdf5", arguments), "data.h5", word)


def test_bombs_in_gzip_are_refused(tmp_path):
    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(b"\n" * (65 << 20)))
    refuse(lambda: write.load("digits", path=str(tmp_path / "digits.csv.gz")), "67,108,864 bytes when unpacked")
    arguments = write.write_idx(tmp_path, gz=True)
    header = b"\0\0\x08\3" + pack(">3I", 30, 2**14, 2**12)
    packed = gzip.compress(header) + bytes(3 << 20)  # large enough for what it claims
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed)
    refuse(lambda: write.read_all("idx", arguments), "1,073,741,824", "gunzip")


def test_classes_too_many_are_refused(tmp_path):
    arguments = write.write_npy(tmp_path)
    np.save(tmp_path / "y_train.npy", np.array([10**12] + [0] * 11))
    refuse(lambda: write.load("har", **arguments), "1,000,000 classes", "1,000,000,000,001")


def test_line_of_any_length_is_not_read(tmp_path):
    arguments = write.write_ts(tmp_path)
    with open(tmp_path / "Small_TRAIN.ts", "ab") as file:
        file.truncate(1 << 40)  # a line of zeros
    refuse(lambda: write.load("har", **arguments), "16,777,216 bytes")


def png(width, height):
    header = pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(99))), (b"IEND", b"")]
    packed = [pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data)) for kind, data in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def test_pictures_are_bounded_and_start_nothing(tmp_path, monkeypatch):
    arguments = write.write_image_folder(tmp_path, n=1)
    file = tmp_path / "train" / "dog" / "0.png"
    file.write_bytes(EPS)
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    refuse(lambda: write.read_all("image_folder", arguments), str(file), "cannot identify")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as some programs set it
    file.write_bytes(png(100_000, 1000))
    refuse(lambda: write.read_all("image_folder", arguments), str(file), "100000 x 1000 pixels")


def test_pipes_and_hidden_folders_are_passed_over(tmp_path):
    arguments = write.write_image_folder(tmp_path, n=1)
    os.mkfifo(tmp_path / "train" / "dog" / "pipe.png")
    (tmp_path / "train" / ".hidden").mkdir()
    write.read_all("image_folder", arguments)
    (tmp_path / "train" / "loop").symlink_to("loop")
    refuse(lambda: write.read_all("image_folder", arguments), "train")


@pytest.fixture
def short():
    """A folder for a socket, whose path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="psframe-") as folder:
        yield folder


def test_sockets_are_this_users_alone(short):
    before = os.umask(0)
    try:
        server, address = node_channel.listen(1, short)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(address).st_mode) == 0o600
    with pytest.raises(OSError, match="in use"):
        socket.socket(socket.AF_UNIX).bind(address)
    taken = []
    waiting = threading.Thread(target=lambda: taken.extend(node_channel.accept(server, 1)))
    waiting.start()
    peer = node_channel.connect(address)
    waiting.join()
    assert peer is not None
    assert len(taken) == 1
    for each in (peer, server, *taken):
        each.close()


@pytest.mark.skipif(os.getuid() != 0, reason="takes root, to be another user for a while")
def test_socket_of_another_user_is_not_talked_to(tmp_path):
    tmp_path.chmod(0o777)
    os.seteuid(65534)
    try:
        server = socket.socket(socket.AF_UNIX)
        server.bind("\0psframe-of-nobody")
        server.listen(1)
    finally:
        os.seteuid(0)
    assert node_channel.connect("\0psframe-of-nobody") is None
    server.close()


def test_shared_memory_has_no_name_and_is_this_users_alone():
    fd, error = node_channel.reserve(4096, 0, None, True)
    assert error is None
    found = os.fstat(fd)
    os.close(fd)
    assert found.st_nlink == 0
    assert stat.S_IMODE(found.st_mode) == 0o600
