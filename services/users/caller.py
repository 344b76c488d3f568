"""Who asks: found out once per request by `services.api.authentication`, and read by everything behind it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

from services.db.privacy import Viewer

Scope = Literal["read", "submit", "admin"]
#: Each may do what those before it may: look at one's own; make and cancel; look at everybody's, and give keys.
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True)
class Caller:
    """Whoever makes a request.

    Attributes:
        user_id: the user, None where the service has no keys yet or the route needs none.
        user_name: the user's name.
        key_id: the key that was shown, also by way of a login.
        key_prefix: how it begins, for the audit log.
        scope: what the caller may do; None: what needs no key.
        csrf: what a form of this caller's must carry, None where no cookie says who asks.
        address: where the request came from.
    """

    user_id: str | None = None
    user_name: str | None = None
    key_id: str | None = None
    key_prefix: str | None = None
    scope: Scope | None = None
    csrf: str | None = None
    address: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether this caller's scope reaches as far as `scope`."""
        return self.scope is not None and SCOPES.index(self.scope) >= SCOPES.index(scope)

    @property
    def viewer(self) -> Viewer:
        """Whose rows this caller sees: everybody's with scope admin, else the user's own, else none."""
        if self.scope == "admin":
            return Viewer(self.user_id, sees_all=True)
        return Viewer(self.user_id)


#: The person at a service without keys, which serves this machine alone.
OPERATOR = Caller(scope="admin")

#: The caller of the request in hand, for templates. Nobody outside of requests.
current: ContextVar[Caller | None] = ContextVar("caller", default=None)
