"""Run directory as an object (:class:`Run`): its records as columns, its figures, and its trained network."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from psframe.api import export, script
from psframe.api import objects as of_script
from psframe.api.figure import Figure
from psframe.api.trained import TrainedNetwork, Training
from psframe.config import schema
from psframe.config.schema import Config
from psframe.errors import UserError
from psframe.nn import metrics as of_samples
from psframe.record import inputs, metrics, run_dir
from psframe.tensors import newest, tensors


class Run:
    """A run that was trained, or is being trained. It reads the run's folder anew at every call.

    Parameters
    ----------
    path : str or Path
        The run's folder.
    model : optional
        Model in place of the one that the config names, as :func:`psframe.fit` takes it: for a run whose model was an
        object of a script, or is in a module that cannot be imported.
    objects : mapping of str to object, optional
        All of them, by their names in the config.
    best : bool
        True to use the checkpoint that ``checkpoint.best`` keeps, in place of the newest.
    given : mapping, optional
        Arguments of :func:`psframe.fit` that :meth:`resume` is to give again.

    Raises
    ------
    UserError
        The folder is not a run's.
    """

    def __init__(
        self,
        path: str | Path,
        model: Any = None,
        *,
        objects: Mapping[str, Any] | None = None,
        best: bool = False,
        given: Mapping[str, Any] | None = None,
    ):
        self.path, self._best, self._given = Path(path), best, given or {}
        content, named = of_script.named({"model": model} if model is not None else {})
        self._objects = dict(objects or named)
        self._trained: tuple[tuple[int, int], TrainedNetwork] | None = None
        resolved = run_dir.config_of(self.path) if self.path.is_dir() else None
        if resolved is None:
            raise UserError(f"a run must be a folder with a config.yaml, got {str(path)!r}; check the path")
        self.config: Config = schema.resolve(schema.over(resolved, content))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(metrics.read(self.path))} of {self.config.train.epochs} epochs)"

    @property
    def epochs(self) -> Any:
        """Records of the epochs as columns: a pandas.DataFrame, or a dict of lists without pandas."""
        return columns(metrics.read(self.path))

    @property
    def steps(self) -> Any:
        """Records of the steps, as :attr:`epochs`; empty without ``record.steps``."""
        return columns(metrics.read(self.path, "steps.jsonl"))

    def figure(self) -> Figure:
        """Return the figures of ``psframe report`` on this run; a notebook shows them."""
        from psframe.report.make import report

        return Figure(report([str(self.path)])[0])

    def _repr_html_(self) -> str:
        return self.figure()._repr_html_() if metrics.read(self.path) else f"<code>{escape(repr(self))}</code>"

    @property
    def trained(self) -> TrainedNetwork:
        """Network with the parameters of the newest checkpoint, or of the best, in this process."""
        saved = newest(self.path, self._best)
        place = saved.epoch, saved.step
        if self._trained is None or self._trained[0] != place:
            self._trained = place, TrainedNetwork(self.training)
        return self._trained[1]

    @property
    def training(self) -> Training:
        """What :attr:`trained` is made from; it stays when the folder is removed."""
        return Training(self.config, inputs.read(self.path), newest(self.path, self._best), self._objects)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the most likely class of each sample, int64 (n,).

        ``images``, (n, C, H, W) or (n, C, T), are in the units of the training data, which this normalizes.
        """
        return self.trained.logits(images).argmax(axis=1)

    def predict_proba(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes, float64 (n, n_classes), of samples as in :meth:`predict`."""
        return softmax(self.trained.logits(images))

    def evaluate(
        self, images: np.ndarray, labels: np.ndarray, metrics: Sequence[str | Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """Return the mean loss, and the accuracy from 0 to 1, of samples as in :meth:`predict`.

        Parameters
        ----------
        images : ndarray, shape (n, C, H, W) or (n, C, T)
        labels : ndarray of int, shape (n,)
        metrics : sequence of str or dict
            As ``record.metrics`` of a config has them: ``["top_5", {"name": "ece", "bins": 10}]``.

        Returns
        -------
        dict
            ``loss`` and ``accuracy``, floats; with ``metrics``, ``metrics``, a dict of their values by label.

        Raises
        ------
        UserError
            Arrays of other shapes, a label that is no class, or a metric that is unknown or fails.
        """
        truth = np.asarray(labels)
        if truth.shape != (len(images),) or truth.dtype.kind not in "iu" or not len(truth):
            raise UserError(
                f"labels must be one integer a sample, ({len(images)},), and at least one, got {truth.dtype} "
                f"{truth.shape}; mend them"
            )
        network, truth = self.trained, truth.astype(np.int64)
        asked = of_samples.make(of_samples.choose(metrics), network.inputs.n_classes)
        logits = network.logits(images)
        loss, n_correct = network.loss_and_hits(logits, truth)
        scores: dict[str, Any] = {"loss": loss / len(truth), "accuracy": n_correct / len(truth)}
        return {**scores, "metrics": of_samples.values(asked, logits, truth)} if asked else scores

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the tensors of that checkpoint by name; see :func:`psframe.tensors.tensors`."""
        return tensors(self.path, self._best)

    def normalize(self, images: np.ndarray) -> np.ndarray:
        """Return samples as in :meth:`predict` as the network takes them, float32 (n, C, H, W) or (n, C, T)."""
        return self.trained.normalized(images)

    def module(self) -> Any:
        """Return the run's ``torch.nn.Module`` in evaluation mode, which takes samples of :meth:`normalize`.

        UserError if its model is not ``torch``.
        """
        from psframe.models.torch_module import with_tensors

        if self.config.model["name"] != "torch":
            raise UserError(f"only a run of model: torch has a module, got {self.config.model['name']}; use tensors()")
        of_run = inputs.read(self.path)
        with script.given(self._objects):
            return with_tensors(self.config.model, of_run.input_shape, of_run.n_classes, self.tensors())

    def save(self, path: str | Path) -> None:
        """Write the tensors to a file: ``.safetensors`` or ``.npz``."""
        export.write(self.tensors(), path)

    @property
    def best(self) -> "Run":
        """The run with the checkpoint of its best epoch, which ``checkpoint.best`` keeps."""
        return Run(self.path, objects=self._objects, best=True, given=self._given)

    def resume(self, epochs: int, *overrides: str, **given: Any) -> "Run":
        """Continue the run up to ``epochs`` epochs in all, and return it.

        Arguments of :func:`psframe.fit` are given again where the run was begun in this script; others may be given in
        their place. A run that was opened needs the objects of its script: ``data`` and ``test_data``, ``model``.
        """
        import psframe

        content = of_script.restored(run_dir.config_of(self.path) or {}, {**self._objects, **given})
        content.pop("versions", None)
        content["train"]["epochs"], content["checkpoint"]["resume"] = epochs, str(self.path.resolve())
        records = metrics.read(self.path)
        ranks = {"ranks": records[-1]["n_ranks"]} if records else {}
        return psframe.fit(content, *overrides, **{**ranks, **self._given, **given})


open_run = Run


def columns(records: Iterable[Mapping[str, Any]]) -> Any:
    """Return records as columns: a pandas.DataFrame, or a dict of lists without pandas; None where a key is missing."""
    rows = list(records)
    by_key = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    try:
        import pandas
    except ImportError:
        return by_key
    return pandas.DataFrame(by_key)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities, float64 (n, n_classes), of logits (n, n_classes)."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=1, keepdims=True)
