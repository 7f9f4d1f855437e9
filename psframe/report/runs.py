"""Section with the runs in one table, and the keys in which their configs differ (:func:`sections`)."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from psframe.record.summary import SHARED, unequal, whole
from psframe.report.html import Section, table
from psframe.report.read import Run
from psframe.report.values import NONE, Spread, column, number, numbers, said, text

MAX_LABEL = 48
LONGEST_LABEL = 300  # of labels that differ only beyond MAX_LABEL


def label(runs: Sequence[Run]) -> None:
    """Give every run the shortest label that tells it from the others, and its number of ranks.

    It describes the run: the sync mode first; other parts, and keys of the configs, as far as they tell runs apart; and
    the config's name only if nothing else does, since overrides may have made it another config.
    """
    # the resolved config's mode: the record of one rank says ``alone``, which its number of ranks says too
    labels: list[tuple[str, ...]] = [(run.config.get("sync.mode") or run.get("sync_mode"),) for run in runs]
    candidates = [[run.get(key) for run in runs] for key in ("collective", "model", "dataset")]
    keys = [key for key in differences(runs) if not key.startswith(("versions", "checkpoint"))]
    keys.sort(key=lambda key: key.startswith(("model", "dataset")))  # a stable sort: these come last
    candidates += [[f"{_short(key)}={run.config[key]}" if key in run.config else "" for run in runs] for key in keys]
    candidates.append([_named(run) for run in runs])
    # runs that one word tells apart need no second one
    for values in candidates:
        labelled = list(zip(labels, map(_ranks, runs), strict=True))
        if len(set(zip(labelled, values, strict=True))) > len(set(labelled)):
            labels = [(*words, value) for words, value in zip(labels, values, strict=True)]
    counts: Counter[str] = Counter()
    for run, shown in zip(runs, _cut(runs, labels), strict=True):
        run.what = shown
        run.label = run.group = ", ".join(filter(None, (shown, _ranks(run))))
        counts[run.label] += 1
    remaining = Counter(dict(counts))
    for run in reversed(runs):
        remaining[run.label] -= 1
        run.label += f" #{remaining[run.label] + 1}" if counts[run.label] > 1 else ""


def _named(run: Run) -> str:
    return f'config "{text(run.config["name"], 40)}"' if run.config.get("name") else ""


def _cut(runs: Sequence[Run], said: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the words of each run as one, truncated only as far as different ones stay different."""
    full = [
        ", ".join(filter(None, words)) or _named(run) or text(run.path.name)
        for run, words in zip(runs, said, strict=True)
    ]
    short = [text(name, MAX_LABEL) for name in full]
    return short if len(set(short)) == len(set(full)) else [text(name, LONGEST_LABEL) for name in full]


def _short(key: str) -> str:
    """Return a key's last word, which is enough in a label; for a strategy's ``name`` that of its section."""
    return key.removesuffix(".name").rpartition(".")[2]


def _ranks(run: Run) -> str:
    count, virtual = number(run.last.get("n_ranks"), 1), "virtual " if run.last.get("simulated") else ""
    return "" if not count else f"{count:.0f} {virtual}ranks" if count > 1 else f"1 {virtual}rank"


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the keys in which configs differ, each with the runs' values."""
    configs = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in configs for key in config)
    compared = [key for key in keys if key != "name" and not key.startswith("record.")]
    return {
        key: [run.config.get(key, NONE) for run in runs]
        for key in compared
        if len({config.get(key, NONE) for config in configs}) > 1
    }


def key_of(run: Run) -> tuple[tuple[str, str], ...]:
    """Return the keys and values shared by runs that differ only in their number of ranks."""
    ignored = ("record.", "versions.", "checkpoint.")
    return tuple(sorted((k, v) for k, v in run.config.items() if k != "name" and not k.startswith(ignored)))


def epoch_s(run: Run) -> Spread | None:
    """Return median, least and most seconds of a complete epoch."""
    seconds = numbers(whole(run.records), "epoch_s")
    return (median(seconds), min(seconds), max(seconds)) if seconds else None


def samples_per_s(run: Run) -> float | None:
    """Return an epoch's median samples over its median seconds, as ``psframe.record.summary`` does."""
    seconds, samples = epoch_s(run), middle(run, "samples_used")
    return samples / seconds[0] if seconds and seconds[0] and samples is not None else None


def middle(run: Run, key: str) -> float | None:
    """Return a key's median over the complete epochs."""
    values = numbers(whole(run.records), key)
    return median(values) if values else None


def sections(runs: Sequence[Run], notices: list[str]) -> list[Section]:
    if not runs:
        return []
    models = {run.get("model") for run in runs if run.get("model")}
    if len(models) > 1:
        notices.append(
            f"runs of different models ({', '.join(sorted(models))}): their curves of loss and accuracy, and their "
            "seconds, stand side by side but cannot be compared"
        )
    machines = sorted({text(run.last["simulated"], 60) for run in runs if run.last.get("simulated")})
    if machines:
        notices.append(
            f"runs on virtual ranks are simulated: their seconds are those of a profile ({', '.join(machines)}), and "
            "were not measured"
        )
    return [Section("summary", "Runs", _summary(runs) + _folders(runs) + _differences(runs))]


def _summary(runs: Sequence[Run]) -> str:
    columns = {
        "s/epoch": column([None if (seconds := epoch_s(run)) is None else seconds[0] for run in runs]),
        "samples/s": column([samples_per_s(run) for run in runs]),
        "accuracy": [_percent(number(run.last.get("accuracy"), 0)) for run in runs],
        "MB/epoch": column([_mega(middle(run, "bytes_moved")) for run in runs]),
    }
    rows = []
    for place, run in enumerate(runs):
        workers, batch, together = (
            said(number(run.last.get(key), 0), 1) for key in ("n_workers", "batch_size", "global_batch")
        )
        rows.append(
            [
                run.label,
                *(run.get(key) or NONE for key in ("model", "dataset")),
                *(run.get(key) or NONE for key in ("sync_mode", "collective")),
                said(number(run.last.get("n_ranks"), 0), 1),
                f"{workers} × {batch}",
                together,
                f"{len(run.records)}",
                *(values[place] for values in columns.values()),
            ]
        )
    head = ["<run", "<model", "<dataset", "<mode", "<collective", "ranks", "workers × batch", "global batch"]
    return table("table-runs", _RUNS, [*head, "epochs", *columns], rows, _unequal(runs))


def _unequal(runs: Sequence[Run]) -> str:
    """Return a sentence on differences in workers or global batch between runs of equal ranks; "" if none."""
    by_run = [{key: number(run.last.get(key), 1) for key in SHARED} for run in runs]
    sentence = unequal([figures for figures in by_run if None not in figures.values()])
    return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""


_RUNS = (
    "Runs, each called by what ran. Seconds, samples and bytes moved are an epoch's, medians over the whole epochs, "
    "and samples/s are these samples over these seconds; accuracy is that on the test set after the last one. Global "
    "batch: samples of a step, over all workers. Mode alone: one rank, which has nobody to exchange with."
)


def _folders(runs: Sequence[Run]) -> str:
    rows = [[run.label, text(run.config.get("name")) or NONE, run.folder] for run in runs]
    return table("table-folders", _FOLDERS, ["<run", "<config", "<folder"], rows)


_FOLDERS = (
    "Where the runs are. Config: the name in each one's file; other keys of it may have been changed on the command "
    "line. Folder: below the path that the report was given, or as given where it was given several."
)


def _differences(runs: Sequence[Run]) -> str:
    by_key = differences(runs)
    if len(runs) < 2 or not by_key:
        return ""
    rows = [[key, *(text(value, 60) for value in values)] for key, values in by_key.items()]
    if len(runs) > len(by_key):  # the longer side goes down the page
        turned = [[run.label, *(text(values[i], 60) for values in by_key.values())] for i, run in enumerate(runs)]
        return table("table-config", _CAPTION, ["<run", *(f"<{key}" for key in by_key)], turned)
    return table("table-config", _CAPTION, ["<key", *(f"<{run.label}" for run in runs)], rows)


_CAPTION = (
    "Where the configs differ, versions included. All other keys are the same; names and record keys are left out."
)


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f} %"


def _mega(value: float | None) -> float | None:
    return None if value is None else value / 1e6
