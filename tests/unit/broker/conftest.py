"""Fixtures of the broker's tests: who vouches for servers over TLS."""

from __future__ import annotations

import pytest
from support.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whose certificate a client is given as `ca_file`."""
    return Authority(tmp_path_factory.mktemp("authority"))
