"""Browser logins: a cookie with an opaque random token, and CSRF protection derived from the token.

The database stores only the token's SHA-256; the token contains no part of the key. A login ends after `LIFETIME`, on logout,
or with its key.
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
#: Cookie to which the login page's form is bound, before there is a login.
FORM_COOKIE = "kernelwright_login_form"
LIFETIME = timedelta(hours=12)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_MASKED = re.compile(r"[0-9a-f]{128}")


def cookie_name(name: str, scheme: str) -> str:
    """Return the name of a cookie for requests that came over `scheme`.

    Over TLS the name has the `__Host-` prefix, with which browsers accept the cookie only from this exact host. Without it a
    sibling host (evil.example.com for kernels.example.com) could plant its own login in a browser, and the user would submit
    sources under the attacker's account.
    """
    return f"__Host-{name}" if scheme == "https" else name


def new_token() -> str:
    """Return a token of 256 random bits."""
    return secrets.token_urlsafe(32)


def log_in(session: Session, caller: Caller) -> str:
    """Create a login for a caller with a key, delete expired logins, and return the token. The caller commits."""
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
    """Return the key behind a login.

    Raises:
        KeyRefused: the login has ended, or its key is no longer valid.
    """
    row = session.get(LoginSession, digest_of(token)) if _TOKEN.fullmatch(token) else None
    if row is None or row.expires_at <= utc_now():
        raise KeyRefused("this login has ended")
    key = session.get_one(ApiKey, row.key_id)
    caller_of(session, key)
    return key


def csrf_of(token: str) -> str:
    """Return the CSRF token that a form must carry when its request comes with this login token's cookie.

    Another site can make a browser send the cookie but can read neither the cookie nor our pages, so it cannot know the value.
    """
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def masked(token: str) -> str:
    """Mask a token of `csrf_of` for one page: fresh random bits, then the token XORed with them, in hex.

    If every page carried the same token, compressed lengths would leak it, see `services.api.compression`.
    """
    plain = bytes.fromhex(token)
    bits = secrets.token_bytes(len(plain))
    return (bits + _xor(plain, bits)).hex()


def unmasked(given: str) -> str:
    """Recover the token from its masked form; "" if the text does not have the form that `masked` returns."""
    if not _MASKED.fullmatch(given):
        return ""
    both = bytes.fromhex(given)
    return _xor(both[32:], both[:32]).hex()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


def safe_next(path: str) -> str:
    """Return `path` as the redirect target after login, or "/" if it could lead to another site."""
    if not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isprintable() or "\\" in path:
        return "/"
    try:
        parts = urlsplit(path)
    except ValueError:
        return "/"
    return "/" if parts.scheme or parts.netloc else path
