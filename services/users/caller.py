"""The caller of a request: identified once per request by `services.api.authentication`, and read by the layers behind it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

from services.db.privacy import Viewer

Scope = Literal["read", "submit", "admin"]
#: Each scope includes the ones before it. read: view own rows; submit: create and cancel; admin: view all rows, manage keys.
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True)
class Caller:
    """The caller of a request.

    Attributes:
        user_id: the user; None if the service has no keys yet or the route needs none.
        user_name: the user's name.
        key_id: the key of the request, or of its login.
        key_prefix: the key's prefix, for the audit log.
        scope: what the caller may do; None allows only routes that need no key.
        csrf: the CSRF token that the caller's forms must carry; None if no cookie identifies the caller.
        address: the client's address.
    """

    user_id: str | None = None
    user_name: str | None = None
    key_id: str | None = None
    key_prefix: str | None = None
    scope: Scope | None = None
    csrf: str | None = None
    address: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether this caller's scope includes `scope`."""
        return self.scope is not None and SCOPES.index(self.scope) >= SCOPES.index(scope)

    @property
    def viewer(self) -> Viewer:
        """The viewer for database sessions: all rows with scope admin, else the user's own, else none."""
        if self.scope == "admin":
            return Viewer(self.user_id, sees_all=True)
        return Viewer(self.user_id)


#: The caller at a service without keys, which serves only this machine.
OPERATOR = Caller(scope="admin")

#: The caller of the current request, for templates; None outside of requests.
current: ContextVar[Caller | None] = ContextVar("caller", default=None)
