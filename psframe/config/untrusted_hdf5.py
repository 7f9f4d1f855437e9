"""Access to untrusted HDF5 files (:func:`array`, :func:`attribute`): validation before any data is read.

An HDF5 file can refer to other files, and claim sizes that it does not hold. These checks cannot protect the HDF5
library itself from malformed bytes.
"""

from contextlib import closing
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psframe.config import untrusted

if TYPE_CHECKING:
    import h5py

DEFLATE_MOST = 1032  # largest compression ratio (zlib's technical notes)
MAX_CHUNK = 256 << 20  # bytes: a chunk is always decompressed entirely
MAX_ATTRIBUTE = 1 << 20  # bytes


def opened(path: str | Path) -> "h5py.File":
    """Open an HDF5 file for reading; OSError if it is not a regular file, or not HDF5."""
    import h5py

    with closing(untrusted.opened(path)):
        return h5py.File(path, "r")


def array(file: "h5py.File", name: str) -> "h5py.Dataset | None":
    """Return a numeric dataset, unread; None if the file has none of that name.

    Raises
    ------
    ValueError
        It lies in another file, is not numeric, claims more than the file can hold, or has too large compressed chunks.
    """
    import h5py

    at: Any = file
    for part in name.split("/"):
        link = at.get(part, getlink=True) if isinstance(at, h5py.Group) else None
        if link is not None and not isinstance(link, h5py.HardLink):
            raise ValueError(f"{name} is a link, which may lead to another file")
        at = None if link is None else at[part]
    if not isinstance(at, h5py.Dataset):
        return None
    if at.is_virtual or at.external:
        raise ValueError(f"{name} lies in other files")
    if at.shape is None or at.dtype.kind not in "iuf":
        raise ValueError(f"{name} holds no numbers but {at.dtype}")
    size = Path(file.filename).stat().st_size
    if prod(at.shape) * at.dtype.itemsize > size * (DEFLATE_MOST if at.chunks else 1):
        raise ValueError(f"{name} claims {at.shape} of {at.dtype}, more than a file of {size:,} bytes can hold")
    chunk = prod(at.chunks or ()) * at.dtype.itemsize
    if chunk > MAX_CHUNK and at.id.get_create_plist().get_nfilters():
        raise ValueError(f"{name} has chunks of {chunk:,} bytes, and at most {MAX_CHUNK:,} are unpacked")
    return at


def attribute(file: "h5py.File", name: str) -> Any:
    """Return a number or a text among a file's attributes, None if absent; ValueError for any other kind."""
    if name not in file.attrs:
        return None
    attr_id = file.attrs.get_id(name)
    kind = attr_id.dtype.kind
    if attr_id.shape != () or kind not in "iufOS" or attr_id.get_storage_size() > MAX_ATTRIBUTE:
        raise ValueError(f"the attribute {name} is neither a number nor a text")
    value = file.attrs[name]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if kind == "O" and not isinstance(value, str):
        raise ValueError(f"the attribute {name} is neither a number nor a text")
    return value
