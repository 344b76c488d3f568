"""Creates, verifies, rotates and revokes API keys; each change writes its audit entry in the same transaction.

A key has the form `kw_<8 characters>_<43 characters>`. `kw_` and the first group are the prefix, which identifies the key in
lookups and lists; the second group is 256 random bits. The database stores the prefix and a SHA-256 of the whole text. Passwords
need a slow, salted hash (argon2, bcrypt) because people choose guessable ones; 256 random bits cannot be guessed however fast
the hash is, and a slow hash would slow down every request. Digests are compared in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, exists, select
from sqlalchemy.orm import Session

from services.db.ids import new_id
from services.db.models import ApiKey, LoginSession, User, utc_now
from services.errors import Conflict, FieldError, NotFound, Refused
from services.users import audit
from services.users.caller import SCOPES, Caller
from services.users.quotas import Quotas, set_quotas

MAX_DAYS = 3650
_PREFIX_BYTES, _SECRET_BYTES = 5, 32
_FORM = re.compile(r"(kw_[a-z2-7]{8})_[A-Za-z0-9_-]{43}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_NOTED_EVERY = timedelta(minutes=1)
_NO_DIGEST = "0" * 64
# Built once: while there are no keys, every request runs this query.
_ANY_KEY = select(exists().where(ApiKey.id.is_not(None)))


class KeyRefused(Exception):
    """The text is not a valid key. `str()` is safe to show: it reveals nothing to a caller that guesses keys."""


@dataclass(frozen=True)
class NewKey:
    """A newly created key. `text` is never stored and cannot be shown again."""

    text: str
    row: ApiKey
    user: User

    def __repr__(self) -> str:
        return f"NewKey({self.row.prefix})"


def any_key(session: Session) -> bool:
    """Whether a key was ever created. Expired and revoked keys count: losing the last key must not open the service."""
    return bool(session.scalar(_ANY_KEY))


def make_key(
    session: Session,
    by: Caller,
    user_name: str,
    name: str,
    scope: str,
    expires_days: float | None,
    quotas: Quotas | None = None,
) -> NewKey:
    """Create a key, and its user if no user has that name; set the user's quotas if given. The caller commits.

    Raises:
        Refused: a name, the scope or the lifetime is not valid.
    """
    errors = [
        FieldError(field, "must be 1 to 64 letters, digits, or . _ @ - and begin with a letter or digit")
        for field, value in (("user", user_name), ("name", name))
        if not _NAME.fullmatch(value)
    ]
    if scope not in SCOPES:
        errors.append(FieldError("scope", f"is one of {', '.join(SCOPES)}"))
    if expires_days is not None and not 0 < expires_days <= MAX_DAYS:
        errors.append(FieldError("expires_days", f"must be more than 0 and at most {MAX_DAYS}"))
    if errors:
        raise Refused(errors)
    user = session.scalar(select(User).where(User.name == user_name))
    if user is None:
        user = User(id=new_id(), name=user_name, quotas={})
        session.add(user)
        session.flush()
    lifetime = timedelta(days=expires_days) if expires_days is not None else None
    made = _new(session, user, name, scope, lifetime)
    audit.note(session, by, "key made", made.row.prefix, detail=f"for {user.name}, scope {scope}")
    if quotas is not None:
        set_quotas(session, by, user, quotas)
    return made


def list_keys(session: Session) -> Sequence[tuple[ApiKey, User]]:
    """Return all keys with their users, newest first."""
    query = select(ApiKey, User).join(User, User.id == ApiKey.user_id).order_by(ApiKey.id.desc())
    return [(key, user) for key, user in session.execute(query)]


def find_key(session: Session, named: str) -> tuple[ApiKey, User]:
    """Return a key by its id or its prefix.

    Raises:
        NotFound: no such key. The full text of a key does not match either, since users should never have to type it again.
    """
    query = select(ApiKey).where((ApiKey.id == named) | (ApiKey.prefix == named))
    row = session.scalar(query) if named.isprintable() else None
    if row is None:
        raise NotFound("there is no key of that id or prefix")
    return row, session.get_one(User, row.user_id)


def rotate_key(session: Session, by: Caller, named: str, grace_hours: float) -> NewKey:
    """Replace a key, which stays valid for `grace_hours` (or less, if it would expire earlier). The caller commits.

    The new key gets the original lifetime of the old one.

    Raises:
        NotFound: see `find_key`.
        Conflict: the old key is no longer valid, or was already rotated.
    """
    old, user = find_key(session, named)
    session.refresh(old, with_for_update=True)  # of two concurrent rotations the second fails with Conflict
    now = utc_now()
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict(f"key {old.prefix} is not valid any more; make a new one")
    if old.replaced_by is not None:
        raise Conflict(f"key {old.prefix} was rotated before; rotate the key that took its place")
    lifetime = old.expires_at - old.created_at if old.expires_at is not None else None
    made = _new(session, user, old.name, old.scope, lifetime)
    old.replaced_by = made.row.id
    until = now + timedelta(hours=grace_hours)
    old.expires_at = min(until, old.expires_at or until)
    audit.note(session, by, "key rotated", old.prefix, detail=f"{made.row.prefix} takes its place")
    return made


def revoke_key(session: Session, by: Caller, named: str) -> tuple[ApiKey, User]:
    """Revoke a key permanently and end the logins made with it; revoking again changes nothing. The caller commits.

    Raises:
        NotFound: see `find_key`.
    """
    row, user = find_key(session, named)
    row.revoked_at = row.revoked_at or utc_now()
    session.execute(delete(LoginSession).where(LoginSession.key_id == row.id))
    audit.note(session, by, "key revoked", row.prefix, detail=f"of {user.name}")
    return row, user


def verify_key(session: Session, text: str) -> Caller:
    """Return the caller that a key's text identifies.

    Raises:
        KeyRefused: the text is not a key, or the key is no longer valid.
    """
    form = _FORM.fullmatch(text)
    row = session.scalar(select(ApiKey).where(ApiKey.prefix == form[1])) if form else None
    same = hmac.compare_digest(digest_of(text), row.sha256 if row is not None else _NO_DIGEST)
    if row is None or not same:
        raise KeyRefused("this key is not known here")
    return caller_of(session, row)


def caller_of(session: Session, row: ApiKey) -> Caller:
    """Return the caller for a key.

    Raises:
        KeyRefused: the key was revoked or has expired.
    """
    if row.revoked_at is not None:
        raise KeyRefused(f"key {row.prefix} was revoked")
    if row.expires_at is not None and row.expires_at <= utc_now():
        raise KeyRefused(f"key {row.prefix} has expired")
    user = session.get_one(User, row.user_id)
    scope = next(one for one in SCOPES if one == row.scope)
    return Caller(user.id, user.name, row.id, row.prefix, scope)


def is_valid(session: Session, key_id: str) -> bool:
    """Whether a key exists and has neither expired nor been revoked."""
    row = session.get(ApiKey, key_id)
    try:
        return row is not None and caller_of(session, row) is not None
    except KeyRefused:
        return False


def should_note_use(row_last_used: datetime | None) -> bool:
    """Whether to record a use of the key; `last_used_at` is updated at most once a minute."""
    return row_last_used is None or row_last_used < utc_now() - _NOTED_EVERY


def digest_of(text: str) -> str:
    """Return the digest that is stored instead of a secret."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _new(session: Session, user: User, name: str, scope: str, lifetime: timedelta | None) -> NewKey:
    prefix = f"kw_{_letters(_PREFIX_BYTES)}"
    text = f"{prefix}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    now = utc_now()
    row = ApiKey(
        id=new_id(),
        user_id=user.id,
        name=name,
        prefix=prefix,
        sha256=digest_of(text),
        scope=scope,
        created_at=now,
        expires_at=now + lifetime if lifetime is not None else None,
    )
    session.add(row)
    session.flush()
    return NewKey(text, row, user)


def _letters(count_bytes: int) -> str:
    return base64.b32encode(secrets.token_bytes(count_bytes)).decode().lower()
