"""All ranks of a job as a case sees them, and random examples that are the same on all of them."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.helpers.suite import IS_FULL
from tests.torch import tensors

MORE_IF_FULL = 8
MOST_BYTES = 1 << 23  # of all ranks' parts of a call together, but for those that are reduced


@dataclass(frozen=True)
class Group:
    """A process group with its members' global ranks; ``handle`` is None of the world."""

    name: str
    handle: Any
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def me(self) -> int | None:
        """This rank's number in the group, if it is a member."""
        rank = dist.get_rank()
        return self.ranks.index(rank) if rank in self.ranks else None


class Team:
    """What a case is given."""

    def __init__(self, backend: str, seed: int):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.backend, self.is_own, self.seed = backend, backend == "psframe", seed
        everyone, self.errors, self.same = range(self.size), [], {}
        self.groups = [Group("world", None, tuple(everyone))]
        for name, members in {
            "twin": everyone,
            "first two": everyone[:2],
            "odd": everyone[1::2],
            "even": everyone[::2],
            "without the first": everyone[1:],
            "last": everyone[-1:],
        }.items():
            if members:
                self.groups.append(Group(name, dist.new_group([*members]), tuple(members)))

    def start(self, name: str, example: int | None) -> None:
        """Begin with a case, or with one example of it."""
        self.name, self.only, self.at = name, example, "before its first example"
        self.errors, self.same = [], {}

    def examples(self, count: int, groups: Sequence[Group] | None = None) -> Iterator["Draw"]:
        """Return so many examples, more in the long suites; each is repeated by its number and the seed."""
        for at in range(count * (MORE_IF_FULL if IS_FULL else 1)) if self.only is None else [self.only]:
            again = f"{self.backend} {self.seed} {self.name}@{at}"
            self.at = f"example {at} (again: tests.torch.harness REPORT {again})"
            yield Draw(self, f"{self.seed} {self.name} {at}", groups or self.groups)

    def tell(self, text: str) -> None:
        """Note a failure; the case goes on, as other ranks do."""
        self.errors.append(f"rank {self.rank}, {self.at}: {text}")

    def expect(self, is_so: bool, text: str) -> None:
        if not is_so:
            self.tell(text)

    def expect_same(self, what: str, value: Any) -> None:
        """Have it compared at the end of the case with what other ranks have for it."""
        self.same[f"{self.at}: {what}"] = value


class Draw:
    """Choices of an example, the same on all ranks, and what this rank is in it."""

    def __init__(self, team: Team, key: str, groups: Sequence[Group]):
        self.team, self.key, self.groups = team, key, groups
        self.rng, self.n_calls = random.Random(key), 0
        self.pick_group()

    def pick_group(self) -> None:
        """Draw a group, the world more often than others."""
        self.group = self.rng.choice([self.groups[0], *self.groups])
        self.n, self.me = self.group.size, self.group.me

    def next_call(self) -> str:
        """Return the words that numbers of another call begin with."""
        self.n_calls += 1
        return f"{self.key} {self.n_calls}"

    def dtype(self, among: Sequence[torch.dtype] = tensors.DTYPES) -> torch.dtype:
        if not self.team.is_own:
            among = [dtype for dtype in among if dtype is not torch.int16]  # gloo: Invalid scalar type
        return self.rng.choice(among)

    def numel(self, dtype: torch.dtype, parts: int = 1) -> int:
        """Draw a number of elements; ``parts`` is how many such tensors a rank has."""
        return tensors.draw_numel(self.rng, dtype, MOST_BYTES // parts // self.n)

    def shape(self, dtype: torch.dtype, parts: int = 1) -> tuple[int, ...]:
        return tensors.draw_shape(self.rng, self.numel(dtype, parts))

    def inputs(self, count: int) -> list[str]:
        """Draw the strides of inputs: all alike, or each for itself."""
        return self._kinds(tensors.INPUT_KINDS, count)

    def outputs(self, count: int) -> list[str]:
        return self._kinds(tensors.OUTPUT_KINDS, count)

    def _kinds(self, among: Sequence[str], count: int) -> list[str]:
        if not self.team.is_own:
            among = ("plain", "offset")  # gloo takes any tensor's memory as it lies, and writes behind its end
        if self.rng.random() < 0.6:
            return [self.rng.choice(among)] * count
        return [self.rng.choice(among) for _ in range(count)]

    def root(self, name: str) -> tuple[int, dict[str, int]]:
        """Draw a root: its number in the group, and the argument that says so, as either number."""
        root = self.rng.randrange(self.n)
        return root, self.rng.choice([{name: self.group.ranks[root]}, {f"group_{name}": root}])
