"""The runs in one table, and in which keys of their configs they differ."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from psframe.report.html import Section, table
from psframe.report.read import Run
from psframe.report.values import NONE, Spread, column, number, numbers, said, text

MOST_LABEL = 48


def label(runs: Sequence[Run]) -> None:
    """Give every run the shortest label that tells it from the others, and its number of ranks."""
    said: list[tuple[str, ...]] = [() for _ in runs]
    common = [key for key in differences(runs) if all(key in run.config for run in runs)]
    keys = [key for key in common if not key.startswith(("model", "dataset", "versions", "checkpoint"))]
    asked = [[run.config.get("name", run.path.name) for run in runs]]
    asked += [[run.get(key) for run in runs] for key in ("model", "dataset", "sync_mode", "collective")]
    # what one word tells apart already needs no second one
    for values in (*asked, *([f"{_short(key)}={run.config[key]}" for run in runs] for key in keys)):
        told = list(zip(said, map(_ranks, runs), strict=True))
        if len(set(zip(told, values, strict=True))) > len(set(told)):
            said = [(*words, value) for words, value in zip(said, values, strict=True)]
    met: Counter[str] = Counter()
    for run, words in zip(runs, said, strict=True):
        shown = ", ".join(filter(None, words)) or run.config.get("name", run.path.name)
        run.label = run.group = ", ".join(filter(None, (text(shown, MOST_LABEL), _ranks(run))))
        met[run.label] += 1
    again = Counter(dict(met))
    for run in reversed(runs):
        again[run.label] -= 1
        run.label += f" #{again[run.label] + 1}" if met[run.label] > 1 else ""


def _short(key: str) -> str:
    """Return a key's last word, which says enough in a label; that of a strategy's name is its section."""
    return key.removesuffix(".name").rpartition(".")[2]


def _ranks(run: Run) -> str:
    count = number(run.last.get("n_ranks"), 1)
    return "" if not count else f"{count:.0f} ranks" if count > 1 else "1 rank"


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the keys in which configs differ, each with the runs' values."""
    having = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in having for key in config)
    told = [key for key in keys if key != "name" and not key.startswith("record.")]
    return {
        key: [run.config.get(key, NONE) for run in runs]
        for key in told
        if len({config.get(key, NONE) for config in having}) > 1
    }


def key_of(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what runs that differ only in their number of ranks have in common."""
    apart = ("record.", "versions.", "checkpoint.")
    return tuple(sorted((k, v) for k, v in run.config.items() if k != "name" and not k.startswith(apart)))


def epoch_s(run: Run) -> Spread | None:
    """Return median, least and most seconds of an epoch."""
    seconds = numbers(run.records, "epoch_s")
    return (median(seconds), min(seconds), max(seconds)) if seconds else None


def middle(run: Run, key: str) -> float | None:
    """Return the median over the epochs."""
    found = numbers(run.records, key)
    return median(found) if found else None


def sections(runs: Sequence[Run], notices: list[str]) -> list[Section]:
    if not runs:
        return []
    models = {run.get("model") for run in runs if run.get("model")}
    if len(models) > 1:
        notices.append(
            f"runs of different models ({', '.join(sorted(models))}): their curves of loss and accuracy, and their "
            "seconds, stand side by side but cannot be compared"
        )
    return [Section("summary", "Runs", _summary(runs) + _differences(runs))]


def _summary(runs: Sequence[Run]) -> str:
    columns = {
        "s/epoch": column([None if (found := epoch_s(run)) is None else found[0] for run in runs]),
        "samples/s": column([middle(run, "samples_per_s") for run in runs]),
        "accuracy": [_percent(number(run.last.get("accuracy"), 0)) for run in runs],
        "MB/epoch": column([_mega(middle(run, "bytes_moved")) for run in runs]),
    }
    rows = []
    for place, run in enumerate(runs):
        workers, batch = (said(number(run.last.get(key), 0), 1) for key in ("n_workers", "batch_size"))
        rows.append(
            [
                run.label,
                *(run.get(key) or NONE for key in ("model", "dataset")),
                *(run.get(key) or NONE for key in ("sync_mode", "collective")),
                said(number(run.last.get("n_ranks"), 0), 1),
                f"{workers} × {batch}",
                f"{len(run.records)}",
                *(values[place] for values in columns.values()),
            ]
        )
    head = ["<run", "<model", "<dataset", "<mode", "<collective", "ranks", "workers × batch", "epochs", *columns]
    return table(
        "table-runs",
        "Runs. Seconds, samples per second and bytes moved are an epoch's, medians over the epochs; accuracy is that "
        "on the test set after the last one.",
        head,
        rows,
    )


def _differences(runs: Sequence[Run]) -> str:
    found = differences(runs)
    if len(runs) < 2 or not found:
        return ""
    rows = [[key, *(text(value, 60) for value in values)] for key, values in found.items()]
    if len(runs) > len(found):  # the longer side goes down the page
        turned = [[run.label, *(text(values[i], 60) for values in found.values())] for i, run in enumerate(runs)]
        return table("table-config", _CAPTION, ["<run", *(f"<{key}" for key in found)], turned)
    return table("table-config", _CAPTION, ["<key", *(f"<{run.label}" for run in runs)], rows)


_CAPTION = (
    "Where the configs differ, versions included. All other keys are the same; names and record keys are left out."
)


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f} %"


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6
