"""The families of strategies, each with the table of its members."""

from psframe import collectives, datasets, models, optim, sync
from psframe.nn import metrics

FAMILIES = {
    "model": models.TABLE,
    "dataset": datasets.TABLE,
    "optimizer": optim.TABLE,
    "sync": sync.TABLE,
    "collective": collectives.TABLE,
    "record.metrics": metrics.TABLE,
}
