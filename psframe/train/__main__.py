"""``mpirun -n N python -m psframe.train CONFIG [key.path=value ...]``: train a network from a config."""

import sys

from psframe.cluster import begin

begin.over_ranks()

from psframe.cluster.command import guarded  # noqa: E402
from psframe.train.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
