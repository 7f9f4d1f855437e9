"""A kernel's modules are found, unpacked and ordered, and its cache is made once, or told why not."""

import lzma
import multiprocessing

import pytest

from tests.knl import kernel


def module(*needs):
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0name=x\0"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """What a package holds once it is unpacked, which stands for the download."""
    folder = tmp_path / "package"
    modules = folder / "usr/lib/modules/6/kernel"
    modules.mkdir(parents=True)
    (folder / "boot").mkdir()
    (folder / "boot/vmlinuz-6").write_bytes(b"kernel")
    (modules / "9p.ko").write_bytes(module("9pnet", "fs-cache"))
    (modules / "fs-cache.ko.xz").write_bytes(lzma.compress(module()))
    (modules / "9pnet.ko").write_bytes(module("built_in"))
    monkeypatch.setenv("PSFRAME_KNL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel, "_unpack", lambda scratch: folder)
    return folder


def test_module_comes_after_those_it_needs(packages):
    made = kernel.prepare()
    names = sorted(path.name for path in (made / "modules").iterdir())
    assert names == ["00-9pnet.ko", "01-fs_cache.ko", "02-9p.ko"]
    assert (made / "modules/01-fs_cache.ko").read_bytes() == module()
    assert (made / "vmlinuz").read_bytes() == b"kernel"


def test_processes_that_prepare_at_once_share_one_kernel(packages):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        made = {task.get(60) for task in [pool.apply_async(kernel.prepare) for _ in range(8)]}
    assert made == {kernel.cache() / "kernel"}
    assert [path.name for path in kernel.cache().iterdir()] == ["kernel"]


def test_missing_network_is_a_sentence_with_nothing_half_made(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "apt-cache").write_text("#!/bin/sh\necho linux-image-6-amd64\n")
    (tools / "apt-get").write_text("#!/bin/sh\necho 'E: Failed to fetch' >&2; exit 100\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv("PSFRAME_KNL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(kernel.NoKernelError, match=r"apt-get update.*E: Failed to fetch"):
        kernel.prepare()
    assert not list(kernel.cache().iterdir())
