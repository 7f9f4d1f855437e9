"""``python -m psframe.bench kernels``: how fast a network's layers are on one rank."""

import sys
from collections.abc import Sequence

from psframe.errors import UserError

BENCHES = ("kernels",)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status, 2 for a mistake in it."""
    try:
        if argv and argv[0] in ("-h", "--help"):
            print(f"usage: python -m psframe.bench {'|'.join(BENCHES)} [--help]")
            return 0
        if not argv or argv[0] not in BENCHES:
            given = repr(argv[0]) if argv else "nothing"
            raise UserError(f"psframe.bench must be told what to measure, got {given}; choose {' or '.join(BENCHES)}")
        from psframe.bench import kernels

        return kernels.main(argv[1:])
    except UserError as error:
        print(f"psframe: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
