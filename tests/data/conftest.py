"""A tiny teacher that every preparation test may read."""

from pathlib import Path

import pytest

from tests.tiny import save_tiny


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of 64 positions, with its tokenizer."""
    return save_tiny(tmp_path_factory.mktemp("teacher"), "bert")


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny RoBERTa, whose tokenizer differs from the teacher's."""
    return save_tiny(tmp_path_factory.mktemp("roberta"), "roberta")
