"""Short runs of everything end as it is written down in ``golden.json``: bits, bytes moved, keys of the record."""

from tests.helpers.suite import IS_FULL
from tests.ranks import golden
from tests.ranks.harness import ranks
from tests.ranks.torch_models import is_missing
from tests.ranks.training import folder, hashes

STRIDE = 5  # of the default suite, which leaves PyTorch and bfloat16 to other cases


@ranks(5)
def runs_end_as_written_down(world):
    names = [name for name in golden.runs() if "torch" not in name or (IS_FULL and not is_missing())]
    few = [name for name in names[::STRIDE] if golden.kind(name) != "bf16"]
    found = {name: golden.run(world, name) for name in (names if IS_FULL else few)}
    written = golden.read()
    for name, ended in found.items():
        here, there = ended.pop(golden.BITS, None), written[name].pop(golden.BITS, None)
        differs = {key: (of, ended[key]) for key, of in written[name].items() if ended[key] != of}
        assert not differs, (name, differs)
        found[name] = (here, there)
    check_bits(found)


@ranks(3)
def bfloat16_that_updates_keep_is_what_is_rounded_before_each_pass(world):
    """A user's own mode may write parameters in any way, so they are rounded anew; this one does as ``allreduce``."""
    with folder(world) as where:
        modes = ("allreduce", "{mode: 'tests.helpers.own:Lazy', every: 1}")
        found = {tuple(hashes(world, 3, where, *golden.SHORT, golden.BF16, f"sync={mode}")) for mode in modes}
    assert len(found) == 1, found


def check_bits(found):
    """Runs that are the same there are so here; on a CPU whose first run ends in the bits written down, so do all."""
    for kind in ("direct", "blas", "bf16", "torch"):
        pairs = {name: pair for name, pair in found.items() if golden.kind(name) == kind and pair != (None, None)}
        n_here, n_there = (len({pair[side] for pair in pairs.values()}) for side in (0, 1))
        assert len({*pairs.values()}) == n_here == n_there, f"{kind}: what had the same bits differs, or the reverse"
        first = next(iter(pairs.values()), None)
        if first and first[0] == first[1]:
            assert all(here == there for here, there in pairs.values()), [n for n, (a, b) in pairs.items() if a != b]
