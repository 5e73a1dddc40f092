"""Tests mirror the source."""

from tests import typecheck as typecheck  # pytest's option --jaxtyping-packages looks it up here
