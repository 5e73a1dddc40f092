"""The checker that the test run puts on every annotated function of kdcore: types, and shapes of tensors.

Integers pass for floats, as everywhere in Python's typing. Functions with an annotation that beartype cannot read stay
unchecked: `Self`, which it understands only where it decorates the whole class, and protocols that do not support
`isinstance`.
"""

from typing import Any

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintException

_strict = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Any) -> Any:
    """Decorate a function with the check."""
    try:
        return _strict(function)
    except BeartypeDecorHintException:
        return function
