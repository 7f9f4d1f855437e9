"""Collectives of Python objects, which PyTorch builds of others."""

import torch
import torch.distributed as dist

from tests.torch.harness import ranks


def _thing(draw, r):
    """Return what rank ``r`` of the group has: of another size on each rank, large at times."""
    kind = draw.rng.choice(["text", "nested", "tensor", "none", "large"])
    return {
        "text": f"{draw.key} {r}" * (r + 1),
        "nested": {"rank": r, "of": [draw.key, (r, None, {"x": 1.5})]},
        "tensor": ["tensor", torch.arange(r + 3).tolist()],
        "none": None,
        "large": bytes([r % 256]) * (100_000 + r),
    }[kind]


@ranks(1, 2, 3, 5, 4)
def objects_are_gathered(team):
    for draw in team.examples(8):
        things, (root, to) = [_thing(draw, r) for r in range(draw.n)], draw.root("dst")
        if draw.me is None:
            continue
        found = [None] * draw.n
        dist.all_gather_object(found, things[draw.me], group=draw.group.handle)
        team.expect(found == things, f"all_gather_object in {draw.group.ranks}: {str(found)[:300]}")
        found = [None] * draw.n if draw.me == root else None
        dist.gather_object(things[draw.me], found, group=draw.group.handle, **to)
        team.expect(draw.me != root or found == things, f"gather_object to {root}: {str(found)[:300]}")


@ranks(1, 2, 3, 5, 4)
def objects_are_spread(team):
    for draw in team.examples(8):
        things, (root, source) = [_thing(draw, r) for r in range(draw.n)], draw.root("src")
        if draw.me is None:
            continue
        found = list(things) if draw.me == root else [None] * draw.n
        dist.broadcast_object_list(found, group=draw.group.handle, **source)
        team.expect(found == things, f"broadcast_object_list of {root}: {str(found)[:300]}")
        found, given = [None], list(things) if draw.me == root else None
        dist.scatter_object_list(found, given, group=draw.group.handle, **source)
        team.expect(found == [things[draw.me]], f"scatter_object_list of {root}: {str(found)[:300]}")


@ranks(2, 3, 5)
def objects_are_sent(team):
    for draw in team.examples(5, [group for group in team.groups if group.size > 1]):
        things, (root, source) = [_thing(draw, r) for r in range(3)], draw.root("src")
        target = (root + 1) % draw.n
        if draw.me == root:
            dist.send_object_list(list(things), group=draw.group.handle, group_dst=target)
        elif draw.me == target:
            found = [None] * 3
            dist.recv_object_list(found, group=draw.group.handle, **source)
            team.expect(found == things, f"{root} to {target}: {str(found)[:300]}")
