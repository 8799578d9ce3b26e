"""Trace context in ``_meta``: the keys and forms of W3C Trace Context and Baggage. Spec: MCP ``basic/index``, SEP-414.

Only what has the right form is sent: a wrong one would break the trace of the peer, not ours.
"""

from __future__ import annotations

import re

__all__ = ["trace_meta", "valid_baggage", "valid_traceparent", "valid_tracestate"]

MAX_STATE_MEMBERS = 32
MAX_BAGGAGE = 8192
"""Bytes of a baggage; more need not be passed on."""
MAX_TEXT = 8192
"""Characters of the others that are looked at."""

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-[\x21-\x7e]*)?")
_STATE_KEY = r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_STATE_MEMBER = re.compile(
    rf"({_STATE_KEY})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_OCTETS = r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
_BAGGAGE_MEMBER = re.compile(
    rf"[ \t]*{_TOKEN}[ \t]*=[ \t]*{_OCTETS}[ \t]*(?:;[ \t]*{_TOKEN}[ \t]*(?:=[ \t]*{_OCTETS}[ \t]*)?)*"
)


def valid_traceparent(text: str) -> bool:
    """Whether this is a ``traceparent``, of version 00 or one to come."""
    match = _PARENT.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None or match[1] == "ff" or (match[1] == "00" and match[4] is not None):
        return False
    return match[2].strip("0") != "" and match[3].strip("0") != ""


def valid_tracestate(text: str) -> bool:
    """Whether this is a ``tracestate``: at most 32 members, no key twice."""
    if len(text) > MAX_TEXT:
        return False
    # Empty members are allowed, and are none.
    members = [member for each in text.split(",") if (member := each.strip(" \t"))]
    matches = [_STATE_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match}
    return 0 < len(members) <= MAX_STATE_MEMBERS and len(keys) == len(members)


def valid_baggage(text: str) -> bool:
    """Whether this is a ``baggage``."""
    if len(text) > MAX_BAGGAGE:
        return False
    return all(_BAGGAGE_MEMBER.fullmatch(member) for member in text.split(","))


def trace_meta(
    traceparent: str | None, tracestate: str | None = None, baggage: str | None = None
) -> dict[str, str]:
    """The keys for ``_meta``; what has a wrong form is left out, and a state without its parent too."""
    meta: dict[str, str] = {}
    if traceparent is not None and valid_traceparent(traceparent):
        meta["traceparent"] = traceparent
        if tracestate is not None and valid_tracestate(tracestate):
            meta["tracestate"] = tracestate
    if baggage is not None and valid_baggage(baggage):
        meta["baggage"] = baggage
    return meta
