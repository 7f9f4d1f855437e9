"""Every sync mode in the forms that differ in code, as a config's section, and what each needs."""

#: each in the forms that differ in code, by how many workers it needs
MODES = {
    "sync: {mode: sync_ps, backup_workers: 1}": 2,
    "sync: {mode: async_ps}": 1,
    "sync: {mode: async_ps, pull_every: 3, push_every: 2}": 1,
    "sync: {mode: async_ps, staleness: 0}": 1,
    "sync: {mode: async_ps, staleness: 2}": 1,
    "sync: {mode: async_ps, compensate: true}": 1,
    "sync: {mode: easgd, period: 4}": 1,
    "sync: {mode: easgd, period: 4, synchronous: true}": 1,
    "sync: {mode: hogwild}": 1,
    "sync: {mode: dogwild}": 1,
    "sync: {mode: local_sgd, every: 3, post_local: 1}": 1,
    "sync: {mode: block_momentum, every: 3, nesterov: true}": 1,
    "sync: {mode: hybrid, period: 2}": 1,
}
#: the same bits in every run
SYNCHRONOUS = [
    mode for mode in MODES if any(word in mode for word in ("local", "block", "synchronous", "staleness: 0"))
]


def key(mode):
    """Return the override of a config that chooses the mode."""
    return mode.replace("sync: ", "sync=", 1)


def with_store(mode, store):
    """Return the override that chooses the mode over a store."""
    return key(mode).replace("}", f", store: {store}}}")


def uses_store(mode):
    """Return whether the mode keeps its parameters in a store."""
    return not any(word in mode for word in ("synchronous", "hogwild", "local", "block"))


def n_workers(world, mode):
    """Return how many of the ranks compute gradients."""
    return world.size - any(word in mode for word in ("sync_ps", "async_ps"))
