"""Toy studies for the tests of this folder."""

from tests.toy_fixtures import done, finished, small, toy

__all__ = ["done", "finished", "small", "toy"]
