"""Memory, threads and kernels of the layers (:class:`Workspace`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from math import prod
from typing import Protocol

import numpy as np

from psframe.nn.threads import Threads

Shape = tuple[int, ...]
#: names of activations, behind a layer's: what lives from its forward to its backward pass, and within a pass
KEPT, SCRATCH = "kept", "scratch"
#: names of what layers share: input gradients, which take turns, and output gradients that outlive a meeting
GRADIENTS, HELD = "input_gradients", "held_gradients"
Arithmetic = Callable[[], AbstractContextManager[None]]  #: returns a context for layers to compute in


class Workspace:
    """Memory, threads and kernels of the layers.

    Parameters
    ----------
    max_batch : int
        Maximum number of samples of a pass.
    dtype : str
        float32 in training, or uint16 for bfloat16; gradient checks use float64.
    allocate : callable
        ``allocate(shape, dtype, tensor)`` returns an array with arbitrary contents, for an activation of that name.
    kernels : {'direct', 'winograd', 'blas'}
        Implementation of convolutions, dense layers and pooling: compiled loops, with fewer products where these
        take less time, or NumPy and its BLAS.
    threads : Threads
    beside : callable
        ``beside(n_bytes)`` counts memory that a layer allocates elsewhere.
    n_kept : int
        Maximum number of passes that wait for their backward pass: a layer keeps the outputs of all.
    adds : bool
        True if a step has several passes, whose gradients are summed.
    autocasts : bool
        True if PyTorch's modules compute under its autocast for bfloat16.
    """

    def __init__(
        self,
        max_batch: int,
        dtype: str,
        allocate: Callable[[Shape, str, str], np.ndarray],
        kernels: str = "direct",
        threads: Threads | None = None,
        beside: Callable[[int], None] = lambda n_bytes: None,
        n_kept: int = 1,
        adds: bool = False,
        autocasts: bool = False,
    ):
        self.max_batch, self.dtype, self.kernels, self.threads = max_batch, dtype, kernels, threads or Threads()
        self.beside, self.n_kept, self.adds, self.autocasts = beside, n_kept, adds, autocasts
        self.layer = ""  #: number and kind of the layer that is bound, as in the names of its tensors
        self.is_last = False  #: true while the layer is bound whose output is the network's
        self.part = max_batch  #: samples that pass the layers together
        self.in_step = False  #: true if several passes go on in step, from one meeting to the next
        self.others: Others | None = None  #: the other workers, for layers in which samples meet theirs
        self.arithmetic: Arithmetic = nullcontext  #: what layers compute in, but for those whose samples meet
        is_half = dtype == "uint16"
        #: numbers along a sum in an element of a product, such elements, and sums; see :mod:`psframe.nn.pairs`
        self.in_one, self.elements, self.sums = (2, "uint32", "float32") if is_half else (1, dtype, dtype)
        self._allocate = allocate
        self._turns: list[np.ndarray] = []
        self._most = 0  # numbers of a sample in these
        self._held: dict[str, tuple[int, np.ndarray]] = {}  # by place
        self._place = ""  # of the layers within others
        self._turns_of: dict[str, list[np.ndarray]] = {}  # by place

    def array(self, shape: int | Shape, dtype: str | None = None, use: str = SCRATCH) -> np.ndarray:
        """Return a layer's private array, of the network's dtype by default."""
        tensor = f"{self.layer}.{use}" if self.layer else use
        return self._allocate((shape,) if isinstance(shape, int) else shape, dtype or self.dtype, tensor)

    def _of_all(self, n_numbers: int, tensor: str) -> np.ndarray:
        """Return an array that layers share."""
        return self._allocate((n_numbers,), self.dtype, tensor)

    def one(self) -> np.ndarray:
        """Return an element of a product that is 1, or a pair of these, in an array (1,).

        It is no memory of the workspace, of which nothing needs to stay from one step to the next.
        """
        return np.full(1, 0x3F803F80 if self.in_one == 2 else 1, self.elements)

    def batch(self, shape: Shape, dtype: str | None = None) -> np.ndarray:
        """Return a layer's private array, (max_batch, *shape)."""
        return self.array((self.max_batch, *shape), dtype)

    def kept(self, shape: Shape, dtype: str | None = None) -> np.ndarray:
        """Return an array for data that a layer keeps until backward, (n_kept * max_batch, *shape)."""
        return self.array((self.n_kept * self.max_batch, *shape), dtype, KEPT)

    @property
    def output_dtype(self) -> str:
        """Type of a layer's output: that of sums if it is the network's."""
        return self.sums if self.is_last else self.dtype

    def output(self, shape: Shape) -> np.ndarray:
        """Return an array as from :meth:`kept` for a layer's output; of sums if that is the network's."""
        return self.kept(shape, self.output_dtype)

    def branch(self, place: str) -> "Workspace":
        """Return a workspace for layers within a layer, whose input gradients take turns apart from this one's.

        Layers at the same ``place`` of others, one after the other in backward, have the same arrays.
        """
        branch = copy(self)
        branch._turns, branch._place, branch.is_last = [], f"{self._place}/{place}", False
        return branch

    def take_turns(self, most: int) -> None:
        """Let the layers that follow write their input gradients, of up to ``most`` numbers, to two arrays in turn.

        A layer's output gradient is not needed after its input gradient is written, so two arrays suffice.
        """
        self._most, n_numbers = most, self.part * most
        turns = self._turns_of.get(self._place, [])
        if not self._place or not turns or turns[0].size < n_numbers:
            turns = self._turns_of[self._place] = [self._of_all(n_numbers, GRADIENTS) for _ in range(2)]
        self._turns = [turn[:n_numbers] for turn in turns]

    def input_gradient(self, shape: Shape) -> np.ndarray:
        """Return the array (..., *shape) for a layer's input gradient; each layer calls once, in network order."""
        if not self._turns:
            return self.batch(shape)
        self._turns.reverse()
        n = self._turns[0].size // prod(shape)
        return self._turns[0][: n * prod(shape)].reshape(n, *shape)

    def held(self, shape: Shape) -> "Held":
        """Return memory for an output gradient that outlives a meeting, shared with the other layers at this place."""
        n = self.n_kept * self.max_batch if self.in_step else self.part
        most, array = self._held.get(self._place, (0, np.empty(0)))
        if most < prod(shape) or array.size < n * most:
            most = max(self._most, prod(shape))
            array = self._of_all(n * most, HELD)
            self._held[self._place] = most, array
        return Held(array, most if self.in_step else 0, shape)


class Others(Protocol):
    """The other workers, for layers in which samples meet theirs."""

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows (m, k), float64, of all workers in their order. All must call, and wait for each other."""


class Held:
    """Memory for samples (..., *shape) of all passes in step, or of one at a time.

    Each sample has as many numbers as the largest that lie there; ``most`` is 0 where only one pass is held.
    """

    def __init__(self, array: np.ndarray, most: int, shape: Shape):
        self.array, self.most, self.shape = array, most, shape

    def rows(self, first: int, n: int) -> np.ndarray:
        """Return the array (n, *shape) for ``n`` samples from the one at ``first`` on."""
        begin = first * self.most
        return self.array[begin : begin + n * prod(self.shape)].reshape(n, *self.shape)
