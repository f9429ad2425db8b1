"""Both kinds of the policy endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.served_session import endpoint_process, local_endpoint, served_by

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["loop", pytest.param("process", marks=pytest.mark.slow)])
def _endpoint_kind(request: pytest.FixtureRequest) -> Iterator[None]:
    """The real endpoint in its process, and the fake on the loop, pass the same tests."""
    token = served_by.set(endpoint_process if request.param == "process" else local_endpoint)
    yield
    served_by.reset(token)
