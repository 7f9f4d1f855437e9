"""A collective of your own: how gradients and parameters move. This one calls MPI plainly."""

from psframe.errors import UserError


class Mine:
    """Reduce and Bcast for modes with a server, Allreduce for those without."""

    def __init__(self, team, size, allocator, reproducible):
        if reproducible != "none":
            raise UserError(f"my_collective sums in MPI's order, got {reproducible}; give train.reproducible=none")
        self.team = team
        self.total = allocator.zeros(size, "float32", "exchange")

    def broadcast(self, params):
        self.team.comm.Bcast(params)

    def gather_mean(self, grads, n_samples):
        if self.team.worker is None:
            grads[:] = 0  # a dedicated server has no gradient of its own
        self.team.comm.Reduce(grads, self.total)
        if self.team.comm.rank == 0:
            self.total /= n_samples
            yield slice(0, len(grads)), self.total

    def allreduce_mean(self, grads, n_samples):
        self.team.comm.Allreduce(grads, self.total)
        self.total /= n_samples
        yield slice(0, len(grads)), self.total
