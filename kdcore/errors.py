"""Errors that a person can act on: one line each, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the input. The message names the thing, its value, what was expected and the remedy.

    The command line prints it on one line of stderr and exits with `exit_code`.
    """

    exit_code = 2


class BusyError(UserError):
    """Somebody else is working on the same study; try again later (EX_TEMPFAIL)."""

    exit_code = 75


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest known names, else all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(repr(n) for n in near)}?"
    return f"known: {', '.join(names)}"
