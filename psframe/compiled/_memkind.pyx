# cython: language_level=3, boundscheck=False, wraparound=False
"""High-bandwidth memory from memkind (:class:`HbwBlock`), by ``hbw_posix_memalign`` as in Woo et al. 2020, Fig. 4.

The library is opened at run time: psframe builds and runs without it. Its rules: ``hbw_set_policy`` works once per
process, before the first allocation, so the first requested policy uses ``hbw_*``, and any other uses the kind of that
policy; interleaved memory has no huge pages.
"""

from libc.errno cimport ENOMEM

from psframe.compiled._numa cimport Block

import os

cdef extern from "Python.h":
    size_t PY_SSIZE_T_MAX

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* name, int flags)
    void* dlsym(void* library, const char* name)
    const char* dlerror()
    int RTLD_NOW, RTLD_LOCAL

ctypedef int (*check_t)() noexcept nogil
ctypedef int (*set_policy_t)(int) noexcept nogil
ctypedef int (*memalign_t)(void**, size_t, size_t) noexcept nogil
ctypedef int (*memalign_psize_t)(void**, size_t, size_t, int) noexcept nogil
ctypedef void (*free_t)(void*) noexcept nogil
ctypedef int (*kind_check_t)(void*) noexcept nogil
ctypedef int (*kind_memalign_t)(void*, void**, size_t, size_t) noexcept nogil
ctypedef void (*kind_free_t)(void*, void*) noexcept nogil
ctypedef int (*stat_t)(void*, int, size_t*) noexcept nogil

cdef struct Library:
    check_t check_available
    check_t version
    check_t update_stats
    set_policy_t set_policy
    memalign_t memalign
    memalign_psize_t memalign_psize
    free_t free
    kind_check_t kind_check
    kind_memalign_t kind_memalign
    kind_free_t kind_free
    stat_t stat

cdef Library memkind
cdef void* handle = NULL
cdef str first_policy = None  # given to hbw_set_policy; "" if that has failed

#: hbw_policy_t, and the kind with the same policy
POLICIES = {
    "bind": (1, b"MEMKIND_HBW"),
    "preferred": (2, b"MEMKIND_HBW_PREFERRED"),
    "interleave": (3, b"MEMKIND_HBW_INTERLEAVE"),
}
cdef enum:
    PAGESIZE_2MB = 2  # hbw_pagesize_t
    ALLOCATED = 2  # memkind_stat_type

LIBRARY = b"libmemkind.so.0"


cdef void* symbol(bytes name) except NULL:
    cdef void* found = dlsym(handle, name)
    if found == NULL:
        raise OSError(f"{LIBRARY.decode()} has no {name.decode()}")
    return found


def load():
    """Open memkind; raises OSError with the loader's reason if it is missing."""
    global handle
    if handle != NULL:
        return
    cdef bytes name = LIBRARY
    cdef void* opened = dlopen(name, RTLD_NOW | RTLD_LOCAL)
    if opened == NULL:
        raise OSError(dlerror().decode(errors="replace"))
    handle = opened
    try:
        memkind.check_available = <check_t>symbol(b"hbw_check_available")
        memkind.version = <check_t>symbol(b"memkind_get_version")
        memkind.update_stats = <check_t>symbol(b"memkind_update_cached_stats")
        memkind.set_policy = <set_policy_t>symbol(b"hbw_set_policy")
        memkind.memalign = <memalign_t>symbol(b"hbw_posix_memalign")
        memkind.memalign_psize = <memalign_psize_t>symbol(b"hbw_posix_memalign_psize")
        memkind.free = <free_t>symbol(b"hbw_free")
        memkind.kind_check = <kind_check_t>symbol(b"memkind_check_available")
        memkind.kind_memalign = <kind_memalign_t>symbol(b"memkind_posix_memalign")
        memkind.kind_free = <kind_free_t>symbol(b"memkind_free")
        memkind.stat = <stat_t>symbol(b"memkind_get_stat")
    except OSError:
        handle = NULL
        raise


def version():
    """Return memkind's version as text. :func:`load` must precede."""
    cdef int number = memkind.version()
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"


def available():
    """Return True if memkind itself finds high-bandwidth memory here. :func:`load` must precede.

    Memkind reads ``MEMKIND_HBW_NODES`` now and never again.
    """
    for _, name in POLICIES.values():  # each kind finds its nodes on first use
        memkind.kind_check((<void**>symbol(name))[0])
    return memkind.check_available() == 0


def allocated(str policy):
    """Return the bytes in use that were allocated under a policy, by memkind's own statistics, which show leaks."""
    cdef size_t value = 0
    cdef void* kind = (<void**>symbol(POLICIES[policy][1]))[0]
    memkind.update_stats()
    if memkind.stat(kind, ALLOCATED, &value):
        raise OSError("memkind keeps no statistics here")
    return value


cdef class HbwBlock(Block):
    """Memory from memkind, not zeroed, returned to it when the last array over it is gone.

    Parameters
    ----------
    n_bytes : int
    policy : str
        A key of ``POLICIES``.
    huge : bool
        True to use reserved pages of 2 MiB; not under ``interleave``.

    Raises
    ------
    OSError
        With the error code of memkind; ENOMEM also if it finds no high-bandwidth memory.
    """

    cdef void* kind  # NULL if hbw_* has allocated it

    def __init__(self, size_t n_bytes, str policy, bint huge=False):
        global first_policy
        cdef int number, failed
        cdef void* address = NULL
        cdef void* kind = NULL
        cdef size_t size = n_bytes or 1, alignment = os.sysconf("SC_PAGE_SIZE")
        if self.address != NULL:
            raise RuntimeError("a block is made once")
        if n_bytes > <size_t>(PY_SSIZE_T_MAX // 2):
            raise OSError(ENOMEM, os.strerror(ENOMEM))
        number, name = POLICIES[policy]
        if first_policy is None:
            # if other code in this process has set a policy first, every policy uses its kind
            first_policy = "" if memkind.set_policy(number) else policy
        if policy != first_policy:
            kind = (<void**>symbol(name + b"_HUGETLB" if huge else name))[0]
        with nogil:
            if kind != NULL:
                failed = memkind.kind_memalign(kind, &address, alignment, size)
            elif huge:
                failed = memkind.memalign_psize(&address, alignment, size, PAGESIZE_2MB)
            else:
                failed = memkind.memalign(&address, alignment, size)
        if failed or address == NULL:
            raise OSError(failed, os.strerror(failed))
        self.address, self.n_bytes, self.kind = address, n_bytes, kind

    def __dealloc__(self):
        if self.address == NULL:
            return
        if self.kind != NULL:
            memkind.kind_free(self.kind, self.address)
        else:
            memkind.free(self.address)
