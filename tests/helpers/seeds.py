"""Seeds of random choices in tests, which a failure shows and a repetition is given."""

import os
import random

VARIABLE = "PSFRAME_TEST_SEED"


def seeded(name: str) -> random.Random:
    """Return what draws the choices called ``name``, and print the seed, which pytest shows where a test fails."""
    given = os.environ.get(VARIABLE)
    seed = int(given) if given else random.SystemRandom().randrange(2**32)
    print(f"seed of {name}: {seed} ({VARIABLE}={seed} repeats it)")
    return random.Random(f"{name} {seed}")
