"""Cases of tests/torch over ranks that are on several nodes: each node has a name of its own for its kernel.

``tests/hosts/test_torch_hosts.py`` has hosts with a network between them.
"""

from functools import cache
from pathlib import Path

import pytest

from tests.helpers import seeds, torchrun
from tests.torch.harness import cases
from tests.torch.test_torch_cases import LONGEST_S, read

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

#: node of each rank; ranks are dealt to the nodes, or numbered node by node, where a sum goes on from node to node
DEALT, BY_NODE = "0,1,0,1", "0,0,1"
LAYOUTS = (DEALT, BY_NODE, "0,1", "0,1,2", "0,0,1,1,2", "0,1,1,0,2")
NAMES = [name for name, case in cases().items() if not case.is_alone and not case.is_full]
#: what matters between nodes, by the layouts of the default suite
SHORT = {
    DEALT: ("collectives.", "messages.", "works.", "coalesced.", "mismatch.every_rank", "mismatch.calls"),
    BY_NODE: ("collectives.reductions", "works.average"),
}

PARAMETERS = [
    pytest.param(layout, name, id=f"{layout}-{name}", marks=[] if few else [pytest.mark.full])
    for layout in LAYOUTS
    for name in NAMES
    if len(layout.split(",")) in cases()[name].ranks
    for few in [name.startswith(SHORT.get(layout, ()))]
]


def test_host_whose_name_is_of_its_loopback_is_reached_by_its_network(monkeypatch):
    from psframe.torch import nodes

    monkeypatch.setenv("MASTER_ADDR", "127.0.1.1")
    assert nodes.own_address(over_hosts=False).startswith("127.")
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    if not any(route.split()[1] == "00000000" for route in routes):
        pytest.skip("this machine has no default route")
    assert not nodes.own_address(over_hosts=True).startswith("127.")


@pytest.fixture(scope="session")
def outcomes(request, tmp_path_factory):
    """Return what runs all chosen cases of a layout, once: their outcomes, what was said, and the seed."""

    @cache
    def run(layout):
        folder = tmp_path_factory.mktemp("torch-nodes")
        items = [item.callspec.params for item in request.session.items if item.originalname == "test_over_nodes"]
        (folder / "chosen").write_text("\n".join(one["name"] for one in items if one["layout"] == layout))
        seed = seeds.seeded(f"torch cases over {layout}").randrange(2**32)
        args = ["-m", "tests.torch.harness", folder / "report.jsonl", "psframe", seed, f"@{folder / 'chosen'}"]
        ended = torchrun.forked(len(layout.split(",")), args, LONGEST_S, PSFRAME_TEST_NODES=layout)
        return read(folder / "report.jsonl"), ended, seed

    return run


@pytest.mark.parametrize(("layout", "name"), PARAMETERS)
def test_over_nodes(layout, name, outcomes):
    results, ended, seed = outcomes(layout)
    n = len(layout.split(","))
    command = torchrun.command(n, ["-m", "tests.torch.harness", "REPORT", "psframe", seed, name])
    print("by hand:", f"PSFRAME_TEST_NODES={layout}", *command)
    assert name in results, f"{name} did not come to an end: {ended}"
    assert not results[name]["errors"], "\n".join(results[name]["errors"])
    if results[name]["skipped"]:
        pytest.skip(results[name]["skipped"])
