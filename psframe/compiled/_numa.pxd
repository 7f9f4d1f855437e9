cdef class Block:
    cdef void* address
    cdef size_t n_bytes
    cdef size_t mapped_bytes
