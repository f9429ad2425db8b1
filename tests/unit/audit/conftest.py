"""One recorded run for all tests of the audit."""

from __future__ import annotations

import pytest
from support.audited_run import AuditedRun, record_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> AuditedRun:
    """A run to be altered in copies."""
    return record_run(tmp_path_factory.mktemp("audited"))
