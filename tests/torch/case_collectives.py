"""Every collective with random numbers: types, sizes, strides, groups, roots, operations; alone, and many at once."""

from tests.torch.call import run
from tests.torch.harness import ranks
from tests.torch.moves import MOVES
from tests.torch.reductions import REDUCTIONS, all_reduce

SIZES = (1, 2, 3, 5, 4, 7, 8, 16)


@ranks(*SIZES)
def reductions_are_folds(team):
    for draw in team.examples(60):
        run(team, draw, [draw.rng.choice(REDUCTIONS)(draw)])


@ranks(*SIZES)
def moved_numbers_are_as_they_were(team):
    for draw in team.examples(60):
        run(team, draw, [draw.rng.choice(MOVES)(draw)])


@ranks(*SIZES)
def many_go_at_once(team):
    """Several collectives of a group and of others with the same members, waited for in each rank's own order."""
    for draw in team.examples(25):
        calls = []
        for _ in range(draw.rng.randint(2, 8)):
            draw.pick_group()
            calls.append(draw.rng.choice((*REDUCTIONS, *MOVES))(draw))
        run(team, draw, calls)


@ranks(*SIZES)
def many_allreduces_go_at_once(team):
    """As those of a backward pass: more than a backend has room for at a time, of one group."""
    for draw in team.examples(6):
        run(team, draw, [all_reduce(draw) for _ in range(20)])
