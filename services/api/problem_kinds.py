"""The kinds of problem documents (RFC 9457), described in plain words for the pages that their `type` links to.

There is one kind per HTTP status, because clients branch on the status; the document's `detail` describes the occurrence.
"""

from __future__ import annotations

from dataclasses import dataclass

BELOW = "/problems/"


@dataclass(frozen=True)
class Kind:
    """One kind of problem.

    Attributes:
        status: the HTTP status.
        name: the last part of its URL path.
        title: a headline.
        meaning: what the problem means.
        remedies: what the client can do, most likely remedy first.
    """

    status: int
    name: str
    title: str
    meaning: str
    remedies: tuple[str, ...]

    @property
    def type(self) -> str:
        """The `type` of its problem documents."""
        return BELOW + self.name


KINDS: tuple[Kind, ...] = (
    Kind(
        400,
        "unreadable-body",
        "The body cannot be read",
        "The request's body is not text in UTF-8, or not of the kind that its Content-Type says.",
        ("Send JSON in UTF-8 with Content-Type: application/json.",),
    ),
    Kind(
        401,
        "no-key",
        "No valid key",
        "The request carries no key, or one that is unknown, revoked or expired.",
        (
            "Send a key as Authorization: Bearer kw_... .",
            "Has the key expired or been rotated? The operator makes another with kernelwright keys create.",
            "In a browser, log in again.",
        ),
    ),
    Kind(
        403,
        "forbidden",
        "Not allowed",
        "The service knows who asks and does not allow this: the key's scope is too small, the request comes from a page of "
        "another site or under a name that is not this service's, or there are no keys yet and it did not come from this machine.",
        (
            "Read the member detail: it names the scope that is needed, or what else was wrong.",
            "A form that was open for long belongs to a login that has ended: reload its page.",
            "Behind a proxy, have the operator list its name in KERNELWRIGHT_ALLOWED_HOSTS.",
        ),
    ),
    Kind(
        404,
        "not-found",
        "Not found",
        "There is nothing at this address, or it belongs to another user: the service does not tell the two apart.",
        (
            "Check the id; ids are case-sensitive and complete.",
            "Check that the key is of the user who made it.",
        ),
    ),
    Kind(
        405,
        "method-not-allowed",
        "Method not allowed",
        "The address exists but does not take this HTTP method.",
        ("Use a method of the Allow header; /docs lists every address with its methods.",),
    ),
    Kind(
        408,
        "too-slow",
        "The request came too slowly",
        "The request's body was not there within the time that the service waits for it, so that no client holds a connection for ever.",
        (
            "Send the request again over a better connection.",
            "Send less at a time: a module needs no data.",
            "The operator can allow more time by KERNELWRIGHT_BODY_SECONDS.",
        ),
    ),
    Kind(
        409,
        "conflict",
        "Conflict",
        "The request contradicts what is there: what it asks for has not been made yet or never will be, its Idempotency-Key "
        "was used with another body, or another request was making the same thing at that moment.",
        (
            "For something that is not ready, follow the job's state and ask again when it has ended.",
            "Use a new Idempotency-Key for a new request.",
            "With a Retry-After header, send the same request again after so many seconds.",
        ),
    ),
    Kind(
        413,
        "body-too-large",
        "The body is too large",
        "The request is larger than this service accepts; nothing of it was kept. The document says how much is accepted.",
        (
            "Send less: one task file and one candidate file are enough for a request.",
            "Answers of a batch may come in several requests, with more set on all but the last.",
            "The operator can raise KERNELWRIGHT_MAX_BODY_BYTES.",
        ),
    ),
    Kind(
        422,
        "invalid-request",
        "The request is not valid",
        "It was understood, but a field is unknown, missing or of a wrong value, or asks for what this service does not have.",
        (
            "The member errors names each field with one sentence; mend those and send it again.",
            "/docs describes every field.",
        ),
    ),
    Kind(
        429,
        "too-many",
        "Too many",
        "Either too many requests came in a short time, or the user has used what a quota allows. With a quota the document "
        "has the members quota, limit, used and resets_at.",
        (
            "Wait for as many seconds as the Retry-After header says.",
            "With a quota that counts waiting jobs, wait until some have ended, or cancel some.",
            "The operator sets quotas with kernelwright keys quota.",
        ),
    ),
    Kind(
        500,
        "internal-fault",
        "The service failed",
        "A fault of the service's own. What the request was to change is as it was before.",
        (
            "Send it again, with the same Idempotency-Key so that nothing is made twice.",
            "If it happens again, tell the operator when it was: the log holds the reason, this answer does not.",
        ),
    ),
    Kind(
        503,
        "not-ready",
        "Not ready",
        "The service is up, but its database does not answer: no key can be checked, nothing read, nothing stored.",
        ("Send the same request again in a moment.", "GET /readyz says what is missing."),
    ),
)
OF_STATUS = {kind.status: kind for kind in KINDS}
OF_NAME = {kind.name: kind for kind in KINDS}
