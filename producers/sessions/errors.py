"""Why a session fails, or takes no further call.

SessionFailed     the whole session ends failed; `name` is the error class of its sample
CallRefused       one call is not made; the session goes on
├── BudgetSpent   turns or tokens are used up: asking again is in vain
├── CallsInFlight what is left is held by the session's own calls: ask again when one has ended
├── Overlong      the input leaves no room in the context
├── BadRequest    it asks for what is not served, or its messages cannot be rendered
├── Leaving       the worker takes no call now
└── SessionClosed the session has ended
"""

from __future__ import annotations

from rollog.kernel.errors import RollogError


class SessionFailed(RollogError):
    """A session cannot become a sample. `name` says why in one word."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class CallRefused(RollogError):
    """One call is not made."""


class BudgetSpent(CallRefused):
    """The session's turns or tokens are used up."""


class CallsInFlight(CallRefused):
    """The session's own calls hold what is left of its budget."""


class Overlong(CallRefused):
    """The input leaves no room for a token in the context."""


class BadRequest(CallRefused):
    """The request asks for what is not served, or its messages cannot be rendered."""


class Leaving(CallRefused):
    """The worker takes no call now; another may."""


class SessionClosed(CallRefused):
    """The session has ended."""
