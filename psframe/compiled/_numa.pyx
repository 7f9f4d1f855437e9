# cython: language_level=3, boundscheck=False, wraparound=False
"""Pages and their NUMA nodes (:class:`Block`): the system calls mmap, mbind, madvise and move_pages.

No libnuma is needed. Errors are OSError with the kernel's errno; EPERM and ENOSYS mean that a sandbox denies the call.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport EFAULT, EINVAL, ENOENT, ENOMEM, errno
from libc.stdint cimport uintptr_t
from libc.string cimport memset

import os

cdef extern from "Python.h":
    size_t PY_SSIZE_T_MAX

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int c_madvise "madvise"(void* address, size_t length, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_SHARED, MAP_ANONYMOUS, MAP_FIXED, MAP_HUGETLB, MAP_POPULATE
    void* MAP_FAILED

cdef extern from "<sys/syscall.h>" nogil:
    long SYS_mbind, SYS_move_pages

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)

#: memory policies (linux/mempolicy.h)
MODES = {"default": 0, "preferred": 1, "bind": 2, "interleave": 3, "weighted": 6}
#: advice (asm-generic/mman-common.h)
HUGEPAGE, POPULATE_WRITE = 14, 23

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
cdef uintptr_t page_bytes = PAGE_BYTES

cdef enum:
    MASK_WORDS = 64  # 4096 nodes, more than any kernel supports
    CHUNK = 1024
    MOVE_OWN = 2  # MPOL_MF_MOVE: pages that no other process maps
    MAP_HUGE_SHIFT = 26


cdef class Block:
    """Private memory, zeroed and untouched, returned to the kernel when the last array over it is gone.

    Parameters
    ----------
    n_bytes : int
        Its mapping is rounded up to full pages.
    page_bytes : int
        Size of the huge pages to use (2 MiB, 1 GiB), which must be reserved; 0 for ordinary pages.
    align_bytes : int
        Alignment of the address, a power of two.
    """

    def __init__(self, size_t n_bytes, size_t page_bytes=0, size_t align_bytes=0):
        cdef int flags = MAP_PRIVATE | MAP_ANONYMOUS
        cdef size_t page = page_bytes or PAGE_BYTES
        cdef size_t wanted = -(-max(n_bytes, 1) // page) * page
        cdef size_t spare = align_bytes if align_bytes > page else 0
        cdef size_t head
        if self.address != NULL:
            raise RuntimeError("a Block is made once")
        if n_bytes > <size_t>(PY_SSIZE_T_MAX // 2):  # the sizes below must not overflow
            raise OSError(ENOMEM, os.strerror(ENOMEM))
        if page_bytes:
            flags |= MAP_HUGETLB | (page_bytes.bit_length() - 1) << MAP_HUGE_SHIFT
        cdef void* address = mmap(NULL, wanted + spare, PROT_READ | PROT_WRITE, flags, -1, 0)
        if address == MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        if spare:
            head = -<uintptr_t>address % spare
            if head:
                munmap(address, head)
            if spare - head:
                munmap(<char*>address + head + wanted, spare - head)
            address = <char*>address + head
        self.address, self.n_bytes, self.mapped_bytes = address, n_bytes, wanted

    def __dealloc__(self):
        if self.mapped_bytes:
            munmap(self.address, self.mapped_bytes)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.address, self.n_bytes, 0, flags)


def mbind(unsigned char[::1] memory, str mode, nodes):
    """Set the NUMA nodes of a mapping's pages that are not allocated yet (mbind(2)).

    Parameters
    ----------
    memory : uint8, shape (n,)
        Page-aligned. The policy of a shared mapping holds for every process.
    mode : str
        A key of ``MODES``.
    nodes : iterable of int
    """
    cdef unsigned long[MASK_WORDS] mask
    cdef unsigned long policy = MODES[mode]
    cdef unsigned long length = memory.shape[0]
    cdef long failed
    memset(mask, 0, sizeof(mask))
    for node in nodes:
        if not 0 <= node < 64 * MASK_WORDS:
            raise OSError(EINVAL, os.strerror(EINVAL))
        mask[node // 64] |= 1UL << (node % 64)
    with nogil:
        failed = syscall(SYS_mbind, &memory[0], length, policy, mask, <unsigned long>(64 * MASK_WORDS), 0UL)
    if failed:
        raise OSError(errno, os.strerror(errno))


def madvise(unsigned char[::1] memory, int advice):
    """Advise the kernel on the use of a mapping's pages, uint8 (n,) (madvise(2))."""
    cdef int failed
    with nogil:  # all pages may be touched here
        failed = c_madvise(&memory[0], memory.shape[0], advice)
    if failed:
        raise OSError(errno, os.strerror(errno))


def map_file(unsigned char[::1] memory, int fd, bint private, size_t place=0):
    """Let full pages of a mapping, uint8 (n,), be those of an open file (mmap(2)) from a byte ``place`` on.

    If ``private``, until they are written; else all are there at once, without a fault of each.
    """
    cdef int kind = MAP_FIXED | (MAP_PRIVATE if private else MAP_SHARED | MAP_POPULATE)
    cdef void* mapped
    with nogil:
        mapped = mmap(&memory[0], memory.shape[0], PROT_READ | PROT_WRITE, kind, fd, place)
    if mapped == MAP_FAILED:
        raise OSError(errno, os.strerror(errno))


cdef unsigned long next_pages(void** address, uintptr_t* at, uintptr_t end) noexcept nogil:
    """List the pages from ``at`` on, at most CHUNK; put ``at`` behind them, and return their number."""
    cdef unsigned long n = 0
    while n < CHUNK and at[0] < end:
        address[n] = <void*>at[0]
        n, at[0] = n + 1, at[0] + page_bytes
    return n


cdef int ask(void** address, unsigned long n, int* status) except -1:
    """Fill ``status`` with the node of each page, or a negative errno."""
    cdef long failed
    with nogil:
        failed = syscall(SYS_move_pages, 0, n, address, NULL, status, 0)
    if failed:
        raise OSError(errno, os.strerror(errno))
    return 0


def where(const unsigned char[::1] memory):
    """Count the pages that hold ``memory``, uint8 (n,), by NUMA node, as the kernel reports them (move_pages(2)).

    Returns
    -------
    dict of int to int
        Number of pages of ``PAGE_BYTES`` by node; under -1, those that this process has not touched yet.
    """
    cdef void* address[CHUNK]
    cdef int status[CHUNK]
    cdef uintptr_t at, end
    cdef unsigned long n, i
    counts = {}
    if memory.shape[0] == 0:
        return counts
    at = <uintptr_t>&memory[0] // page_bytes * page_bytes
    end = <uintptr_t>&memory[0] + memory.shape[0]
    while at < end:
        n = next_pages(address, &at, end)
        ask(address, n, status)
        for i in range(n):
            # EFAULT: a page that was only read is the kernel's one page of zeros
            node = status[i] if status[i] >= 0 else -1 if status[i] in (-ENOENT, -EFAULT) else None
            if node is None:
                raise OSError(-status[i], os.strerror(-status[i]))
            counts[node] = counts.get(node, 0) + 1
    return counts


def move(unsigned char[::1] memory, nodes):
    """Move the pages that hold ``memory``, uint8 (n,), to NUMA nodes, with what is in them (move_pages(2)).

    Others may read and write them meanwhile. A page goes to the first of the nodes that has one to spare, and stays
    where it is if none has, or if it lies on one of them already.

    Parameters
    ----------
    memory : uint8, shape (n,)
    nodes : sequence of int

    Returns
    -------
    int
        Number of pages, of ``PAGE_BYTES``, that lie on one of the nodes now.
    """
    cdef void* address[CHUNK]
    cdef void* left[CHUNK]
    cdef int status[CHUNK]
    cdef int target[CHUNK]
    cdef uintptr_t at, end
    cdef unsigned long n, n_left, i, n_there = 0
    cdef long failed
    if memory.shape[0] == 0:
        return 0
    known = set(nodes)
    at = <uintptr_t>&memory[0] // page_bytes * page_bytes
    end = <uintptr_t>&memory[0] + memory.shape[0]
    while at < end:
        n = next_pages(address, &at, end)
        for node in (*nodes, None):
            # asked anew each time: where a page stays, the call tells nothing of those behind it
            ask(address, n, status)
            n_left = 0
            for i in range(n):
                if status[i] >= 0 and status[i] not in known:
                    left[n_left] = address[i]
                    n_left += 1
            if n_left == 0 or node is None:
                break
            for i in range(n_left):
                target[i] = node
            with nogil:
                failed = syscall(SYS_move_pages, 0, n_left, left, target, status, MOVE_OWN)
            if failed < 0 and errno != ENOMEM:  # the node is full
                raise OSError(errno, os.strerror(errno))
        for i in range(n):
            n_there += status[i] >= 0 and status[i] in known
    return n_there
