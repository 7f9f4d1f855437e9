"""Mistakes in the protocols of the sync modes (:data:`MISTAKES`), each of which some order of ranks shows."""

from tests.helpers.mistaken import Mistake

SHARED, WINDOW = "sync.stores.shared:SharedStore", "sync.stores.window:WindowStore"
BOX, MAIL = "sync.stores.shared_mailbox:SharedMailbox", "sync.stores.window_mailbox:WindowMailbox"
SERVER, ASYNC, BACKUP = "sync.server_mode:ServerMode", "sync.async_ps:AsyncPS", "sync.backup_workers:BackupWorkers"
NODE, BETWEEN = "collectives.node_vectors:NodeVectors", "collectives.between_nodes:Streamed"

MISTAKES = [
    # a push that is lost, or made twice
    Mistake(f"{SHARED}.push", "np.add(params[stripe], delta[stripe], out=params[stripe])", "pass", "pushes"),
    Mistake(f"{WINDOW}.push", "self._of_params.Accumulate(delta, 0, 0, MPI.SUM)", "pass", "pushes"),
    Mistake("sync.dogwild:Dogwild._exchange", "w += d", "w[:] = m", "dogwild"),
    Mistake("sync.dogwild:Dogwild._exchange", "r += d", "pass", "dogwild"),
    Mistake("sync.dogwild:Dogwild.drain", "self._meet_at(self._store)", "pass", "dogwild"),
    Mistake(f"{BOX}.collect", "(self._n_taken[worker] + 1)", "(self._n_taken[worker] + 0)", "posts"),
    Mistake(f"{BOX}.collect", "self._n_collected += 1", "pass", "posts"),
    Mistake(f"{ASYNC}.take", "and not self.is_dropped(", "and step > 1 and not self.is_dropped(", "async_ps"),
    # a clock that is read twice, too late, or not at all
    Mistake(f"{SHARED}._copied", "return clock", "return self.clock", "pulls"),
    Mistake(f"{SHARED}._copied", "[clock % self._copies]", "[self.clock % self._copies]", "pulls"),
    Mistake(f"{WINDOW}._got", "return clock if", "return self._load(CLOCK) if", "pulls"),
    Mistake(f"{SHARED}.pull", "< self._copies:", "<= self._copies + 1:", "pulls"),
    Mistake(f"{WINDOW}._got", "< self._copies else", "<= self._copies + 1 else", "pulls"),
    Mistake(
        f"{SERVER}.age", "self.mailbox.headers[worker, PULLED])", "self.mailbox.headers[worker, PULLED] - 1)", "told"
    ),
    Mistake(f"{SERVER}.apply", "self.clock += 1", "pass", "told"),
    # a commit without its gate
    Mistake(f"{SHARED}._commit", "self._counters.add(CLOCK)", "pass", "pulls"),
    Mistake(f"{SHARED}._commit", "self._counters.unlock(CLOCK)", "pass", "pulls"),
    Mistake(f"{WINDOW}._begin", "self._add(BEGUN, 1)", "pass", "pulls"),
    Mistake(f"{WINDOW}._commit", "self._add(CLOCK, 1)", "self._add(CLOCK, 2)", "pulls"),
    Mistake(f"{NODE}.commit", "self.meeting.meet(COMMITTED, self.reducing, late=self._sums.late)", "pass", "one_mean"),
    Mistake(f"{NODE}.put", "waits=False)", "waits=False) if chunk else None", "shared"),
    Mistake(f"{NODE}.put", "if chunk > 1:", "if chunk > 2:", "chunk_bytes"),
    Mistake(f"{NODE}.wait", "self._sums.wait(chunk)", "pass", "shared"),
    Mistake(f"{BETWEEN}._all_left", "(self._n_steps + 1)", "self._n_steps", "hierarchical"),
    Mistake(
        "cluster.cluster:Cluster.barrier",
        "self.rendezvous.together()\n    if self.n_nodes > 1:\n        if",
        "if self.n_nodes > 1:\n        if",
        "on 1",
    ),
    # a bound that is off by one
    Mistake(f"{ASYNC}._let_go", "<= self.bound", "<= self.bound + 1", "ahead"),
    Mistake(f"{ASYNC}._let_go", "slowest = min(self.clocks)", "slowest = max(self.clocks)", "ahead"),
    Mistake(f"{ASYNC}.take", "self.clocks[worker] += 1", "self.clocks[worker] += 2", "ahead"),
    Mistake("sync.work_source:SampleQueue.turns", "* self.sampler.n_workers:", "* self.sampler.n_workers - 1:", "told"),
    Mistake(f"{BACKUP}._allocate", "self.n_workers - self.backup_workers", "self.n_workers", "some_gradients"),
    Mistake(f"{BACKUP}.take", "if self.age(worker):", "if self.age(worker) > 1:", "some_gradients"),
    Mistake(
        "sync.averaging:Averaging.step",
        "if self.since < self.period(step):",
        "if self.since <= self.period(step):",
        "order",
    ),
    # a wait that is left out
    Mistake(f"{SHARED}.push", "return self.tick()", "return self.clock", "pushes"),
    Mistake(f"{WINDOW}.push", "return self._add(CLOCK, 1)", "return self._load(CLOCK)", "pushes"),
    Mistake(f"{BOX}.announce", "self._counters.add(_posts(worker))", "pass", "posts"),
    Mistake(
        f"{MAIL}.collect",
        "self._comm.Recv(self._note, MPI.ANY_SOURCE, POST, status)",
        "self._comm.Recv(self._note, 1, POST, status)",
        "posts",
    ),
    Mistake(f"{BOX}.wait_ack", "self._counters.until(_grants(worker), self._n_posted)", "pass", "posts"),
    Mistake(f"{BOX}.announce", "self._n_posted += 1", "pass", "posts"),
    Mistake(f"{MAIL}.wait_ack", "self._n_granted < self._n_posted", "self._n_granted + 1 < self._n_posted", "posts"),
    Mistake(f"{SERVER}._arrive", "self._store.rest()", "pass", "backup"),
    Mistake(f"{SHARED}.rest", "if self._team.comm.rank == 0:", "if False:", "tickets"),
    Mistake("sync.averaging:Averaging._set", "barrier()  # until nobody reads the old values", "pass", "order"),
    Mistake("sync.hybrid:Hybrid._tell", "self._parts.group.cluster.barrier()", "pass", "hybrid"),
]
