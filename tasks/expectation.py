"""How much longer a flow takes, from the times of its stages that have finished.

A student of one dataset takes about as long as the others of it; where none has finished, as the mean student does.
Only commands that ran count: what DVC restored from its cache took no time and says nothing of what did not.
"""

from collections.abc import Collection, Mapping
from statistics import fmean

from tasks.plan import kind


def seconds_left(took: Mapping[str, float], running: Mapping[str, float], waiting: Collection[str],
                 parallel: int) -> tuple[float | None, tuple[str, ...]]:
    """Seconds until all stages are done of which one of their kind has finished, None where there are none, and the
    other kinds.

    Args:
        took: seconds of each finished stage.
        running: seconds that each running stage has been at it.
        waiting: stages still to come.
        parallel: stages at a time.
    """
    expected = {stage: _expected(stage, took) for stage in (*running, *waiting)}
    rest = [max(0.0, seconds - running.get(stage, 0.0)) for stage, seconds in expected.items() if seconds is not None]
    unknown = dict.fromkeys(kind(stage) for stage, seconds in expected.items() if seconds is None)
    return max(sum(rest) / parallel, max(rest)) if rest else None, tuple(unknown)


def in_words(seconds: float | None, unknown: Collection[str] = ()) -> str:
    """What is left as people say it: `under a minute`, `3 h 20 min, without report, which have no times yet`."""
    if seconds is None:
        return f"not known, {', '.join(unknown)} have no times yet"
    hours, minutes = divmod(round(seconds / 60), 60)
    words = f"{hours} h {minutes:02} min" if hours else f"{minutes} min" if minutes else "under a minute"
    return f"{words}, without {', '.join(unknown)}, which have no times yet" if unknown else words


def _expected(stage: str, took: Mapping[str, float]) -> float | None:
    for alike in (_kind_and_dataset, kind):
        if seconds := [time for other, time in took.items() if alike(other) == alike(stage)]:
            return fmean(seconds)
    return None


def _kind_and_dataset(stage: str) -> str:
    """`distill@rte` of `distill@rte-finetune`: names of methods hold no dash."""
    return stage.rpartition("-")[0] or stage
