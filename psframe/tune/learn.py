"""Model of this machine beside a search (:class:`Model`): it rules ways out, and learns from those that were raced."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

from psframe.config.schema import parse_value
from psframe.config.tuned import BATCH
from psframe.predict import check, command, search
from psframe.predict.alternatives import VALID
from psframe.predict.command import Asked
from psframe.predict.machine import Check, Machine
from psframe.predict.model import Prediction
from psframe.predict.paces import predicted
from psframe.tune.race import SURE_ROUNDS, Entry
from psframe.tune.way import Way

#: keys of a way that the model knows, and the names it has for them
KNOWN = {"sync.mode": "mode", "sync.server": "server", "sync.servers": "n_servers", "collective.name": "collective"}


class Model:
    """Model of this machine for a config, whose work is measured.

    Parameters
    ----------
    config : str
    overrides : sequence of str
    ranks : sequence of int
    machine : str
        Path of this machine's profile.
    start : sequence of str
        The launcher.
    """

    def __init__(self, config: str, overrides: Sequence[str], ranks: Sequence[int], machine: str, start: Sequence[str]):
        words = {"config": config, "overrides": [*overrides], "ranks": ",".join(map(str, ranks)), "machine": machine}
        options = dict.fromkeys(("link", "per_node", "hosts", "what_if"))
        self.asked: Asked = command.judged(Namespace(**words, **options, check=True), start)

    def predicted(self, way: Way) -> Prediction | None:
        """Return the prediction for a way; None if it has settings that the model does not know."""
        settings = {key: parse_value(value) for key, value in way.settings}
        batch = settings.pop(BATCH, way.batch_size)
        if not settings.keys() <= KNOWN.keys():
            return None
        fields = {KNOWN[key]: value for key, value in settings.items()}
        if "mode" in fields:
            if fields["mode"] not in VALID["mode"]:
                return None
            fields = {**self.asked.in_mode(fields["mode"]), **fields}
        job = self.asked.job
        if batch is not None:
            job = replace(job, work=search.resized(job.work, batch))
        return predicted(job, self.asked.at(way.n_ranks, **fields))

    def seconds(self, way: Way) -> float | None:
        """Return the modelled seconds of an epoch; None if the model does not know."""
        prediction = self.predicted(way)
        return prediction.epoch_s if prediction else None

    def learn(self, entries: Sequence[Entry], n_train: int) -> tuple[list[Check], Machine]:
        """Add the ways that were raced for long to the profile; return them and the profile. UserError if it fails."""
        checks = []
        for entry in entries:
            prediction = self.predicted(entry.way)
            if prediction and len(entry.seconds) >= SURE_ROUNDS:
                batch = entry.way.batch_size or self.asked.job.work.batches[0]
                work = replace(self.asked.job.work, batches=(batch, 1))
                what = replace(self.asked.job, work=work).named(prediction.way)
                measured_s = round(entry.middle * n_train, 5)
                checks.append(Check(what, entry.way.n_ranks, round(prediction.modelled_s, 5), measured_s))
        return checks, check.add(self.asked.profile, checks)
