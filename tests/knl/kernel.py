"""Finds a Linux kernel to boot: Debian's own, downloaded once, and its few modules in the order they are loaded."""

import lzma
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

#: what the guest mounts files with; a module that a kernel has built in is not looked for
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")

#: newer Debians split an image into several packages
PACKAGE = re.compile(r"linux-(image|binary|modules)-\d\S*")


class NoKernelError(Exception):
    """No kernel can be had here; the message says why, in one sentence."""

    def __init__(self, why: str):
        super().__init__(f"no kernel to boot (apt-get update, and a network, let it be downloaded): {why}")


def cache() -> Path:
    """Return the folder that kernels are kept in: ``PSFRAME_KNL_CACHE``, or psframe-knl in the user's own cache."""
    own = os.environ.get("PSFRAME_KNL_CACHE")
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "psframe-knl"


def prepare() -> Path:
    """Return a folder with ``vmlinuz`` and ``modules/``, downloaded if it is not there yet.

    Several processes may call this at once: each builds a folder of its own, and the first one's is kept.

    Raises
    ------
    NoKernelError
        If the package cannot be downloaded or unpacked, or the cache cannot be written.
    """
    kernel = cache() / "kernel"
    if kernel.is_dir():
        return kernel
    try:
        kernel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kernel.parent) as scratch:
            built = Path(scratch) / "kernel"
            _collect(_unpack(Path(scratch)), built)
            try:
                built.rename(kernel)
            except OSError:
                if not kernel.is_dir():  # another process was first
                    raise
    except OSError as error:
        raise NoKernelError(
            f"{kernel.parent} cannot hold it ({error}): PSFRAME_KNL_CACHE names another folder"
        ) from None
    return kernel


def _unpack(scratch: Path) -> Path:
    """Download the packages that ``linux-image-amd64`` stands for, and return the folder with their files."""
    no = [f"--no-{what}" for what in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
    tree = _command(scratch, "apt-cache", "depends", "--recurse", *no, "linux-image-amd64")
    names = sorted({line for line in tree.splitlines() if PACKAGE.fullmatch(line)})
    if not names:
        raise NoKernelError("apt knows no linux-image-amd64")
    _command(scratch, "apt-get", "download", *names)
    unpacked = scratch / "unpacked"
    for package in sorted(scratch.glob("*.deb")):
        _command(scratch, "dpkg", "-x", str(package), str(unpacked))
        package.unlink()
    return unpacked


def _command(folder: Path, *command: str) -> str:
    try:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernelError(str(error)) from None
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NoKernelError(f"{' '.join(command[:2])}: {last}")
    return ended.stdout


def _collect(unpacked: Path, built: Path) -> None:
    """Copy the kernel, and the modules under names that sort in the order they are loaded."""
    images = sorted(unpacked.glob("boot/vmlinuz-*"))
    if not images:
        raise NoKernelError("Debian's kernel package has no boot/vmlinuz-*")
    (built / "modules").mkdir(parents=True)
    shutil.copyfile(images[0], built / "vmlinuz")
    for number, (name, content) in enumerate(load_order(unpacked, MODULES).items()):
        (built / "modules" / f"{number:02}-{name}.ko").write_bytes(content)


def load_order(unpacked: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Return the modules ``wanted`` and what they need, each after what it needs itself.

    The package has no ``modules.dep`` (depmod writes it at installation), but a module names what it needs in its
    ``.modinfo``.
    """
    files = {_name(path.name): path for path in unpacked.rglob("*.ko*")}
    order: dict[str, bytes] = {}

    def visit(name: str) -> None:
        if name in order or name not in files:
            return
        content = _read(files[name])
        needs = re.search(rb"\bdepends=([^\0]*)\0", content)
        for need in needs[1].decode().split(",") if needs else ():
            visit(need.replace("-", "_"))
        order[name] = content

    for name in wanted:
        visit(name)
    return order


def _name(file: str) -> str:
    return file.partition(".")[0].replace("-", "_")


def _read(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(content)
    if path.suffix != ".ko":
        raise NoKernelError(f"a module of Debian's kernel is packed in a way not known here: {path.name}")
    return content
