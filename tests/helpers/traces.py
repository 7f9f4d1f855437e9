"""Traces of real runs, which tests.helpers.scaling writes, held against the model of membership."""

import shutil

from tests.helpers.spin import MODELS, checked

MODEL = MODELS / "membership.pml"


def traces_of(folder, n):
    """Return what each of ``n`` ranks has done: a list of events, words of the model, some with a number behind."""
    traces = [(folder / str(rank)).read_text().splitlines() for rank in range(n)]
    # in the model all know at first who trains
    return [trace[1:] if trace[:1] == ["HEARD_CHANGE"] else trace for trace in traces]


def can_be_done(traces, victim, steps, folder):
    """Return True if the ranks of the model can do what ``traces`` say, of a run of so many steps.

    ``victim`` is the rank that was killed, None for none; ``folder`` is made.
    """
    longest = max(map(len, traces))
    numbers = {
        "VICTIM": len(traces) if victim is None else victim,
        "LONGEST": longest,
        "TOTAL": sum(map(len, traces)),
    }
    lines = [f"#define {name} {value}" for name, value in numbers.items()]
    lines += [f"hidden byte length[{len(traces)}], events[{len(traces) * longest}];", "inline load_trace() { d_step {"]
    for rank, events in enumerate(traces):
        lines.append(f"length[{rank}] = {len(events)};")
        places = range(rank * longest, (rank + 1) * longest)
        lines += [f"events[{at}] = {event.replace(' ', ' + ')};" for at, event in zip(places, events, strict=False)]
    folder.mkdir()
    shutil.copy(MODEL, folder / MODEL.name)
    (folder / "trace.h").write_text("\n".join([*lines, "skip } }", ""]))
    told = checked(folder / MODEL.name, folder, "-E", N=len(traces), STEPS=steps, TRACED=True)
    done = "assertion violated (total<" in told
    assert done or "errors: 0" in told, told  # an assertion of the protocol itself would be another error
    return done
