"""Logins of browsers: a cookie with a random token that says nothing by itself, and the token's form of CSRF protection.

Of a token only the SHA-256 is stored; no part of the key is in it. A login ends after `LIFETIME`, on logout, or with its key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import timedelta
from urllib.parse import urlsplit

from sqlalchemy import delete
from sqlalchemy.orm import Session

from services.db.models import ApiKey, LoginSession, utc_now
from services.users.caller import Caller
from services.users.keys import KeyRefused, caller_of, digest_of

COOKIE = "kernelwright_login"
#: What the form of the login page is bound to, before there is a login.
FORM_COOKIE = "kernelwright_login_form"
LIFETIME = timedelta(hours=12)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_MASKED = re.compile(r"[0-9a-f]{128}")


def cookie_name(name: str, scheme: str) -> str:
    """How a cookie of ours is called where a request came by `scheme`.

    Over TLS with the prefix by which browsers take it from this very host alone. Without it a page of a neighboring host
    (evil.example.com for kernels.example.com) could lay a login of its own into a browser, whose person would then hand in
    sources under somebody else's name.
    """
    return f"__Host-{name}" if scheme == "https" else name


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def log_in(session: Session, caller: Caller) -> str:
    """A login for a caller who has shown a key; its token. Expired logins go. The caller commits."""
    assert caller.key_id is not None
    now = utc_now()
    session.execute(delete(LoginSession).where(LoginSession.expires_at <= now))
    token = new_token()
    session.add(
        LoginSession(
            token_sha256=digest_of(token), key_id=caller.key_id, created_at=now, expires_at=now + LIFETIME
        )
    )
    return token


def log_out(session: Session, token: str) -> None:
    """End a login. The caller commits."""
    session.execute(delete(LoginSession).where(LoginSession.token_sha256 == digest_of(token)))


def verify_login(session: Session, token: str) -> ApiKey:
    """The key behind a login.

    Raises:
        KeyRefused: there is no such login any more, or its key is not valid any more.
    """
    row = session.get(LoginSession, digest_of(token)) if _TOKEN.fullmatch(token) else None
    if row is None or row.expires_at <= utc_now():
        raise KeyRefused("this login has ended")
    key = session.get_one(ApiKey, row.key_id)
    caller_of(session, key)
    return key


def csrf_of(token: str) -> str:
    """What a form must carry whose request comes with a cookie of this token.

    Another site can make a browser send the cookie but can read neither it nor our pages, so it cannot know this.
    """
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def masked(token: str) -> str:
    """A token of `csrf_of` under new random bits, for one page: those bits, and the token's exclusive or with them, in hex.

    The same token in page after page could be learnt from how well they compress, see `services.api.compression`.
    """
    plain = bytes.fromhex(token)
    bits = secrets.token_bytes(len(plain))
    return (bits + _xor(plain, bits)).hex()


def unmasked(given: str) -> str:
    """The token in what a page carried; "" for whatever `masked` did not make."""
    if not _MASKED.fullmatch(given):
        return ""
    both = bytes.fromhex(given)
    return _xor(both[32:], both[:32]).hex()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def safe_next(path: str) -> str:
    """A path on this service to go to after the login; "/" for whatever could lead elsewhere."""
    if not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isprintable() or "\\" in path:
        return "/"
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    return "/" if parts.scheme or parts.netloc else path
