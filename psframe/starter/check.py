"""Command ``psframe check CONFIG``: judge a config without MPI, or print the schema of all configs (:func:`main`)."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psframe.cluster import mpirun, no_mpi
from psframe.cluster.parser import Parser, counts
from psframe.cluster.process import guarded
from psframe.errors import UserError
from psframe.record.view import say

if TYPE_CHECKING:
    from psframe.train.plan.without_ranks import Verdict

USAGE = "psframe check CONFIG [key.path=value ...] [-n N] [--json] | --schema"
EXAMPLE = "psframe check config.yaml -n 4 sync.mode=allreduce"


def parser() -> Parser:
    cli = Parser(USAGE, "Judge a config, its dataset and its network, without MPI and without training.", EXAMPLE)
    cli.add_argument("config", nargs="?", help="a YAML file")
    cli.add_argument("overrides", nargs="*", help="key.path=value, as train.epochs=3")
    cli.add_argument("-n", dest="ranks", help="judge it for so many ranks of one node, too")
    cli.add_argument("--json", action="store_true", help="print the verdict as JSON")
    cli.add_argument("--schema", action="store_true", help="print the JSON Schema of configs, for editors")
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. Under a launcher a node's first rank alone prints."""
    cli = parser()
    arguments = cli.parse_intermixed_args(argv)
    if arguments.schema:
        no_mpi.stand_in()
        from psframe.starter import json_schema

        text = json_schema.text()
    elif arguments.config is None:
        cli.error("it names no config")
    else:
        text = _verdict(arguments.config, arguments.overrides, _n_ranks(arguments.ranks), arguments.json)
    if mpirun.speaks():
        say(text)
    return 0


def _n_ranks(text: str | None) -> int | None:
    numbers = counts(text or "1", mpirun.MAX_RANKS)
    if len(numbers) != 1:
        raise UserError(f"-n must be a number of ranks, got {text!r}; give psframe check -n 4")
    return None if text is None else numbers[0]


def _verdict(path: str, overrides: Sequence[str], n_ranks: int | None, as_json: bool) -> str:
    no_mpi.stand_in()
    from psframe.train.plan import without_ranks  # imports NumPy and Numba, which --help does without

    try:
        found = facts(path, without_ranks.check(path, overrides, n_ranks))
    except UserError as error:
        if as_json and mpirun.speaks():
            say(json.dumps({"config": path, "sound": False, "mistake": str(error)}, indent=2))
        raise
    return json.dumps(found, indent=2) if as_json else in_words(found)


def facts(path: str, verdict: "Verdict") -> dict[str, Any]:
    """Return the facts of a sound config, as ``--json`` prints them."""
    judged, roles = verdict.judged, verdict.roles
    names = {section: judged.choices[section].name for section in ("model", "dataset", "sync", "collective")}
    return {
        "config": path,
        "sound": True,
        "name": judged.config.name,
        **names,
        "collective": names["collective"] if judged.asked.traits.exchanges else None,
        "n_params": verdict.network.whole.n_params,
        "shape": list(judged.facts.input_shape),
        "n_classes": judged.facts.n_classes,
        "n_train": judged.facts.n_train,
        "n_test": judged.facts.n_test,
        "n_workers": roles.n_workers if roles else None,
        "n_servers": len(roles.servers) if roles else None,
        "unused": judged.unused,
        "left": verdict.left,
    }


def in_words(found: dict[str, Any]) -> str:
    """Return the verdict on a sound config in words: a line, one for each key without effect, and what is left."""
    over = f" over {found['collective']}" if found["collective"] else ""
    workers = found["n_workers"]
    on = f", {workers} worker{'s' * (workers != 1)}" if workers else ""
    line = (
        f"{found['config']} is sound: {found['model']} ({found['n_params']:,} parameters) on {found['dataset']} "
        f"({found['n_train']:,} training and {found['n_test']:,} test samples), {found['sync']}{over}{on}"
    )
    unused = [f"# not used by this choice: {key}" for key in found["unused"]]
    return "\n".join([line, *unused, f"# only ranks can tell: {', '.join(found['left'])}"])


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
