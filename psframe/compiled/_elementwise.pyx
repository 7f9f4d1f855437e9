# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sums and updates of flat float32 vectors (:class:`Mean`): it adds gradients and applies optimizers' rules.

Every collective and every optimizer uses it. It works element by element in one fixed order of operations
(``_update.h``, ``_rules.h``), or tensor by tensor where norms are needed (``_layerwise.h``), so that the bits are the
same for every way to move the bytes.
"""
from libc.stdint cimport uint16_t, uint64_t
from libc.stdlib cimport free, malloc

cdef extern from "_layerwise.h" nogil:
    enum: PSF_SGD, PSF_MOMENTUM, PSF_NESTEROV, PSF_MOMENTUM_W, PSF_NESTEROV_W, PSF_ADAM, PSF_ADAM_W, PSF_ADAGRAD
    enum: PSF_LION, PSF_LARS, PSF_LAMB, PSF_BLOCK, PSF_TREE_DEPTH, PSF_STATE
    ctypedef struct psf_rule:
        int kind
        float lr, decay, momentum, beta1, beta2, eps, correct1, correct2, trust, clip_value
        double clip_norm
    ctypedef struct psf_part:
        long start, stop
        float lr, decay
        int trained, adapts
    ctypedef struct psf_source:
        const float** row
        const int* merges
        long n_rows, size, begin
        float n
    ctypedef struct psf_target:
        int n_state
        bint averages
        float rate
        const float* w
        const float* state[PSF_STATE]
        float* new_w
        float* new_state[PSF_STATE]
        uint64_t* sums
        uint16_t* bf16
    bint psf_ordered(const float** row, const int* merges, long n_rows, long at, long size, float n, float* out)
    bint psf_step(const psf_source* mean, const psf_part* parts, long n_parts, psf_rule rule, const psf_target* to)
    bint psf_step_whole(const psf_source* mean, const psf_part* parts, long n_parts, psf_rule rule, float* scratch,
                        const psf_target* to)
    bint psf_is_whole(const psf_source* mean, const psf_part* parts, long n_parts, bint needs_all)
    void psf_narrow(const float* v, long size, uint16_t* bf16)
    uint64_t psf_checksum(const float* v, long size)
    bint psf_is_finite(const float* v, long size)

#: number of checksums that :meth:`Mean.update` leaves: of parameters and state before, then after
N_SUMS = 2 * (1 + PSF_STATE)


def checksum(const float[::1] vector):
    """Return a 64-bit checksum of a float32 vector (S,), which any single flipped bit changes."""
    cdef uint64_t found = 0
    if vector.shape[0]:
        with nogil:
            found = psf_checksum(&vector[0], vector.shape[0])
    return found


def is_finite(const float[::1] vector):
    """Return True if all numbers of a float32 vector (S,) are finite."""
    cdef bint found = True
    if vector.shape[0]:
        with nogil:
            found = psf_is_finite(&vector[0], vector.shape[0])
    return bool(found)


def narrow(const float[::1] vector, uint16_t[::1] bf16):
    """Write a float32 vector (S,) as bfloat16 to the first S numbers of ``bf16``.

    To nearest even; subnormal numbers become zeros of their sign, and NaN quiet.
    """
    if bf16.shape[0] < vector.shape[0]:
        raise ValueError(f"{vector.shape[0]} numbers do not fit into {bf16.shape[0]}")
    if vector.shape[0]:
        with nogil:
            psf_narrow(&vector[0], vector.shape[0], &bf16[0])


cdef class Rule:
    """An update with its hyper-parameters; its kinds are the keys of ``KINDS``, the last two of whole tensors."""
    cdef psf_rule rule
    cdef readonly int n_state

    KINDS = {"sgd": (PSF_SGD, 0), "momentum": (PSF_MOMENTUM, 1), "nesterov": (PSF_NESTEROV, 1),
             "momentum_w": (PSF_MOMENTUM_W, 1), "nesterov_w": (PSF_NESTEROV_W, 1), "adam": (PSF_ADAM, 2),
             "adam_w": (PSF_ADAM_W, 2), "adagrad": (PSF_ADAGRAD, 1), "lion": (PSF_LION, 1), "lars": (PSF_LARS, 1),
             "lamb": (PSF_LAMB, 2)}

    def __init__(self, str kind, *, float decay=0, float momentum=0, float beta1=0, float beta2=0, float eps=0,
                 float trust=0, float clip_value=0, double clip_norm=0):
        self.rule.kind, self.n_state = self.KINDS[kind]
        self.rule.decay, self.rule.momentum, self.rule.trust = decay, momentum, trust
        self.rule.beta1, self.rule.beta2, self.rule.eps = beta1, beta2, eps
        self.rule.clip_value, self.rule.clip_norm = clip_value, clip_norm

    @property
    def decay(self):
        """Weight decay, float32."""
        return self.rule.decay

    def at(self, float lr, double correct1=1, double correct2=1):
        """Set the learning rate, and Adam's ``1 - beta**t``; return this rule."""
        self.rule.lr, self.rule.correct1, self.rule.correct2 = lr, <float>correct1, <float>correct2
        return self


cdef class Parts:
    """Parts of a vector, each with its own rule: rows of (start, stop, trained, lr, decay, adapts), in its order.

    Trained numbers get the rule with ``lr`` times its learning rate, and ``decay`` in place of its own; from the others
    the mean is subtracted. Numbers of no part stay as they are. If ``adapts``, a rule of whole tensors uses norms.
    """
    cdef psf_part* part
    cdef readonly Py_ssize_t n, longest

    def __cinit__(self, rows):
        cdef Py_ssize_t i, end = 0
        self.n = len(rows)
        self.part = <psf_part *>malloc(max(1, self.n) * sizeof(psf_part))
        if self.part == NULL:
            raise MemoryError()
        for i in range(self.n):
            start, stop, trained, lr, decay, adapts = rows[i]
            if not end <= start <= stop:
                raise ValueError(f"parts must follow each other, not {rows}")
            self.part[i] = psf_part(start, stop, lr, decay, trained, adapts)
            self.longest, end = max(self.longest, stop - start), stop

    def __dealloc__(self):
        free(self.part)


cdef class Mean:
    """The canonical mean, computed on request: ``(((rows[0] + rows[1]) + rows[2]) + ...) / n_samples``, or as a tree.

    Parameters
    ----------
    rows : sequence of float32 arrays, shape (S,)
        In the order of worker numbers.
    merges : sequence of int, optional
        A tree instead of the left fold, as ``psframe.collectives.order`` gives it: after row r is pushed on a stack,
        its two topmost entries are replaced by their sum ``merges[r]`` times.
    """
    cdef const float **row
    cdef int *merges
    cdef readonly Py_ssize_t size, n_rows
    cdef float n_samples
    cdef list keep

    def __cinit__(self, rows, merges=None):
        cdef const float[::1] view
        cdef Py_ssize_t i
        self.n_rows = len(rows)
        if self.n_rows == 0:
            raise ValueError("a mean needs at least one row")
        self.row = <const float **>malloc(self.n_rows * sizeof(float *))
        if self.row == NULL:
            raise MemoryError()
        self.keep, self.size, self.n_samples = [], len(rows[0]), 1
        for i in range(self.n_rows):
            view = rows[i]
            if view.shape[0] != self.size:
                raise ValueError(f"every row must have {self.size} numbers, row {i} has {view.shape[0]}")
            self.keep.append(view)
            self.row[i] = &view[0] if self.size else NULL
        if merges is not None:
            self._order(merges)

    cdef _order(self, merges):
        """Keep a tree; raises ValueError if it does not fit these rows, or is too deep."""
        cdef Py_ssize_t i, depth = 0
        if len(merges) != self.n_rows:
            raise ValueError(f"a tree over {self.n_rows} rows must say of each how often to add, not of {len(merges)}")
        self.merges = <int *>malloc(self.n_rows * sizeof(int))
        if self.merges == NULL:
            raise MemoryError()
        for i in range(self.n_rows):
            self.merges[i] = merges[i]
            # a row that is added at once needs no place on the stack
            if not 0 <= self.merges[i] <= depth or (self.merges[i] == 0 and depth == PSF_TREE_DEPTH):
                raise ValueError(f"a tree must add what it has, of at most {PSF_TREE_DEPTH} sums, not {list(merges)}")
            depth += 1 - self.merges[i]
        if depth != 1:
            raise ValueError(f"a tree must end in one sum, {list(merges)} ends in {depth}")

    def __dealloc__(self):
        free(self.row)
        free(self.merges)

    def over(self, n_samples):
        """Set the number of samples to divide by; return this mean."""
        self.n_samples = n_samples
        return self

    def into(self, float[::1] out, Py_ssize_t begin=0):
        """Write the numbers from ``begin`` on to ``out``, float32; return True if all are finite.

        ``out`` may be the first row; with a tree, any row.
        """
        cdef Py_ssize_t at, end = begin + out.shape[0]
        cdef bint finite = True
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"a mean has {self.size} numbers, not {begin} to {end}")
        if begin < end:
            with nogil:
                at = begin
                while at < end:
                    finite &= psf_ordered(self.row, self.merges, self.n_rows, at,
                                          min(end - at, <Py_ssize_t>PSF_BLOCK), self.n_samples, &out[at - begin])
                    at += PSF_BLOCK
        return bool(finite)

    def update(self, Rule rule, const float[::1] params, float[::1] new_params, state, new_state, sums=None,
               Parts parts=None, Py_ssize_t begin=0, bf16=None, float[::1] scratch=None, rate=None):
        """Compute the mean and apply the rule to it in one pass; return True if the mean is finite.

        Parameters
        ----------
        params, new_params : float32, shape (S,)
            Before and after the update; may be the same.
        state, new_state : float32, shape (n_state, S)
            Likewise.
        sums : uint64, shape (N_SUMS,), optional
            Receives :func:`checksum` of the old parameters and state rows, and in its second half of the new ones.
        parts : Parts, optional
            Parts of the vector of which these are a segment, from ``begin`` on; by default, all is one tensor.
        bf16 : uint16, shape (S,), optional
            Receives the new parameters as bfloat16.
        scratch : float32, optional
            Room for the longest part, which a rule of whole tensors needs.
        rate : float, optional
            Share of the new parameters in an average of theirs, a row of state behind the rule's own.

        Raises
        ------
        ValueError
            If lengths differ, or the segment cuts a tensor or a gradient of which the rule needs the norm.
        """
        cdef psf_target to
        cdef psf_source mean = psf_source(self.row, self.merges, self.n_rows, self.size, begin, self.n_samples)
        cdef bint finite, by_tensor = rule.rule.kind >= PSF_LARS, by_norm = rule.rule.clip_norm > 0
        cdef float* room = NULL
        to.averages, to.rate = rate is not None, 0 if rate is None else rate
        self._aim(&to, rule.n_state + to.averages, params, new_params, state, new_state)
        self._note(&to, sums, bf16)
        if self.size == 0:
            return True
        if parts is None:
            parts = Parts([(begin, begin + self.size, True, 1, rule.rule.decay, True)])
        if not by_tensor and not by_norm:
            with nogil:
                finite = psf_step(&mean, parts.part, parts.n, rule.rule, &to)
            return bool(finite)
        if not psf_is_whole(&mean, parts.part, parts.n, by_norm):
            raise ValueError(f"numbers {begin} to {begin + self.size} cut what the rule needs whole")
        if by_tensor and parts.longest:
            if scratch is None or scratch.shape[0] < parts.longest:
                raise ValueError(f"the longest part has {parts.longest} numbers, for which scratch has no room")
            room = &scratch[0]
        with nogil:
            finite = psf_step_whole(&mean, parts.part, parts.n, rule.rule, room, &to)
        return bool(finite)

    cdef _aim(self, psf_target* to, int n_state, const float[::1] params, float[::1] new_params, state, new_state):
        """Point at parameters and state."""
        cdef const float[::1] old_row
        cdef float[::1] new_row
        cdef Py_ssize_t i
        if params.shape[0] != self.size or new_params.shape[0] != self.size:
            raise ValueError(f"a mean of {self.size} numbers updates as many parameters")
        if len(state) < n_state or len(new_state) < n_state:
            raise ValueError(f"an update keeps {n_state} numbers for each parameter")
        to.n_state, to.w, to.new_w = n_state, &params[0], &new_params[0]
        for i in range(n_state):
            old_row, new_row = state[i], new_state[i]
            if old_row.shape[0] != self.size or new_row.shape[0] != self.size:
                raise ValueError(f"a mean of {self.size} numbers updates as much state")
            to.state[i], to.new_state[i] = &old_row[0], &new_row[0]

    cdef _note(self, psf_target* to, sums, bf16):
        """Point at what receives checksums, and bfloat16."""
        cdef uint64_t[::1] found
        cdef uint16_t[::1] rounded
        to.sums, to.bf16 = NULL, NULL
        if sums is not None:
            sums[:] = 0
            found = sums
            if found.shape[0] != N_SUMS:
                raise ValueError(f"an update leaves {N_SUMS} checksums")
            to.sums = &found[0]
        if bf16 is not None:
            rounded = bf16
            if rounded.shape[0] != self.size:
                raise ValueError(f"a mean of {self.size} numbers updates as many of bfloat16")
            to.bf16 = &rounded[0]
