"""What the contract suites share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    from support.small_training import make_model  # noqa: PLC0415 - torch is not for the contracts of brokers

    return make_model(tmp_path_factory.mktemp("model"))
