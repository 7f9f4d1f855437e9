"""Boots an emulated Knights Landing under QEMU, without hardware support, and runs a script in it.

The guest sees this machine's files, read-only, below an overlay in its own memory: the checkout and its virtual
environment are simply there, and whatever is written is gone when it ends.
"""

import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from tests.knl import kernel
from tests.knl.machine import DEFAULT, MODES, Memory, arguments

__all__ = ["MODES", "Ended", "Memory", "missing", "run"]

ROOT = Path(__file__).resolve().parents[2]
QEMU = "qemu-system-x86_64"
BOOT_S = 60  # it takes 3; of some hundreds of emulated machines with several CPUs, one stood still on its way up

#: start up quickly: nothing is measured or guarded that an emulated machine has no use for
KERNEL_OPTIONS = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check nowatchdog cryptomgr.notests"
)


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes
    ----------
    status : int or None
        The script's exit status; None where the machine ended before the script did.
    out : str
        What the script wrote to its standard output and error.
    timed_out : bool
        Whether the machine was stopped at the time-out.
    console : str
        The end of what the kernel and QEMU wrote; says why, where ``status`` is None.
    """

    status: int | None
    out: str
    timed_out: bool
    console: str


@cache
def missing() -> str | None:
    """Return why no machine can be emulated here, in a sentence, or None; downloads the kernel at its first call."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "a Knights Landing that runs this machine's files needs Linux on x86-64"
    for program, package in ((QEMU, "qemu-system-x86"), ("busybox", "busybox-static"), ("setpriv", "util-linux")):
        if shutil.which(program) is None:
            return f"no {program}: apt-get install {package}"
    if b"/ld-linux" in Path(str(shutil.which("busybox"))).read_bytes():
        return "busybox is not linked statically: apt-get install busybox-static"
    try:
        kernel.prepare()
    except kernel.NoKernelError as error:
        return str(error)
    return None


def run(mode: str, script: str, *, timeout_s: float = 300, memory: Memory = DEFAULT, out: Path | None = None) -> Ended:
    """Boot, run a bash script in the checkout's folder, and wait until the machine is off.

    The script finds ``$OUT``, a folder of the host that it may write to. It runs as root of the guest, on 8 CPUs.

    Parameters
    ----------
    mode : str
        One of `MODES`.
    script : str
        For bash; it has this process's ``PATH``.
    timeout_s : float
        Seconds from start to end, after which the machine is stopped.
    memory : Memory
        Sizes of the nodes.
    out : Path, optional
        The folder that ``$OUT`` stands for, if its files are of interest; ``script``, ``start``, ``output`` and
        ``status`` in it are this function's own.

    Raises
    ------
    RuntimeError
        Where `missing` says why not.
    """
    if missing():
        raise RuntimeError(missing())
    with tempfile.TemporaryDirectory(prefix="psframe-knl-") as folder:
        scratch = Path(folder)
        share = scratch / "share" if out is None else out.absolute()
        share.mkdir(parents=True, exist_ok=True)
        _write_script(share, script)
        (scratch / "initrd").write_bytes(_initrd(kernel.prepare() / "modules"))
        console = scratch / "console"
        command = _command(mode, memory, scratch, share)
        timed_out = _wait(command, console, timeout_s, share / "output")
        status = _text(share / "status").strip()
        return Ended(
            int(status) if status else None, _text(share / "output"), timed_out, _text(console)[-4000:].strip()
        )


def _write_script(share: Path, script: str) -> None:
    for name in ("output", "status"):
        (share / name).unlink(missing_ok=True)
    (share / "script").write_text(script)
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LC_ALL": "C.UTF-8", "OUT": "/knl"}
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
    start = f"cd {shlex.quote(str(ROOT))} && exec bash /knl/script\n"
    (share / "start").write_text("".join([*exports, start]))


def _initrd(modules: Path) -> bytes:
    """Pack the guest's first files: busybox, the modules and the script that mounts everything else."""
    files = {"init": Path(__file__).with_name("init"), "bin/busybox": Path(str(shutil.which("busybox")))}
    files |= {f"modules/{path.name}": path for path in modules.iterdir()}
    entries = [_entry(folder, stat.S_IFDIR | 0o755) for folder in ("bin", "modules")]
    entries += [_entry(name, stat.S_IFREG | 0o755, path.read_bytes()) for name, path in files.items()]
    return b"".join([*entries, _entry("TRAILER!!!", 0)])


def _entry(name: str, mode: int, content: bytes = b"") -> bytes:
    """Return a file of a "newc" cpio archive, the format of an initramfs: 13 numbers in hexadecimal, name, content."""
    fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
    header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)


def _command(mode: str, memory: Memory, scratch: Path, share: Path) -> list[str]:
    options = KERNEL_OPTIONS
    if any(Path("/tmp") in Path(path).parents for path in (ROOT, sys.prefix, sys.base_prefix)):
        options += " knl.keep_tmp"  # a fresh /tmp would hide them
    view = "security_model=none,multidevs=remap"
    return [
        *("setpriv", "--pdeathsig", "KILL"),  # QEMU ends with this process, however that ends
        *(QEMU, "-accel", "tcg,thread=multi", *arguments(mode, memory)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"),
        *("-kernel", str(kernel.prepare() / "vmlinuz"), "-initrd", str(scratch / "initrd"), "-append", options),
        *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{view}"),
        *("-virtfs", f"local,path={str(share).replace(',', ',,')},mount_tag=share,{view}"),
    ]


def _wait(command: list[str], console: Path, timeout_s: float, output: Path) -> bool:
    """Run QEMU to its end or the time-out; tell which. A machine that does not come up is started once more."""
    with console.open("wb") as log:
        if timeout_s <= BOOT_S:
            return _timed_out(command, log, timeout_s)
        return _timed_out(command, log, timeout_s, output) and (output.exists() or _timed_out(command, log, timeout_s))


def _timed_out(command: list[str], log: IO[bytes], timeout_s: float, output: Path | None = None) -> bool:
    """Run QEMU to its end, or the time-out; or until it has not come up to write its ``output`` by `BOOT_S`."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        if output:
            with suppress(subprocess.TimeoutExpired):
                process.wait(BOOT_S)
            if not output.exists():
                return process.poll() is None
        process.wait(timeout_s)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        process.kill()
        process.wait()


def _text(path: Path) -> str:
    return path.read_text(errors="replace").replace("\r\n", "\n") if path.exists() else ""
