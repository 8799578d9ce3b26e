"""What a browser shows at the end of a login. Plain HTML5: no script, nothing from elsewhere, nothing secret, and all
that others wrote escaped."""

from __future__ import annotations

from html import escape

from ..wire.http_rules import first_words

__all__ = ["failed_page", "rest_of", "stray_page", "succeeded_page", "waiting_page"]

MOST_NAME = 100
"""Characters of a server's name."""
MOST_REASON = 600
"""Characters of a reason."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Moorings</title>
<style>
:root {{ color-scheme: light dark; --paper: #eef2f5; --card: #ffffff; --ink: #17212b; --faint: #566573; --line: #d5dde4;
  --good: #1a7f4b; --bad: #b3372b; --idle: #3a6ea5; }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #10171e; --card: #19232d; --ink: #e8eef3; --faint: #9fb0be;
  --line: #2c3a47; --good: #4cc38a; --bad: #f2806f; --idle: #7fb2e6; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }}
main {{ width: 100%; max-width: 30rem; padding: 2.25rem 2.25rem 1.75rem; background: var(--card);
  border: 1px solid var(--line); border-top: 4px solid var(--tone); border-radius: 10px; overflow-wrap: anywhere; }}
.good {{ --tone: var(--good); }} .bad {{ --tone: var(--bad); }} .idle {{ --tone: var(--idle); }}
svg {{ display: block; width: 2.75rem; height: 2.75rem; margin-bottom: 1rem; fill: none; stroke: var(--tone);
  stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }}
h1 {{ margin: 0 0 .6rem; font-size: 1.4rem; line-height: 1.3; }}
p {{ margin: 0 0 .75rem; }}
blockquote {{ margin: 0 0 1rem; padding: .6rem .9rem; border-left: 3px solid var(--tone); background: var(--paper); }}
footer {{ margin-top: 1.5rem; padding-top: .9rem; border-top: 1px solid var(--line); color: var(--faint);
  font-size: .875rem; }}
</style>
</head>
<body>
<main class="{tone}">
<svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="10.5"/><path d="{sign}"/></svg>
<h1>{heading}</h1>
{text}
<footer>Moorings</footer>
</main>
</body>
</html>
"""

_END = "</body>"
_CHECK = "M7 12.5l3.5 3.5L17 9"
_CROSS = "M8.5 8.5l7 7m0-7l-7 7"
_DOTS = "M7.5 12h.01M12 12h.01M16.5 12h.01"


def waiting_page(server: str) -> str:
    """The answer is here, and what comes of it is not known yet. ``rest_of`` another page ends this one."""
    page = _page(
        "idle waiting",
        _DOTS,
        "Login",
        f"Finishing the login to <bdi>{_plain(server, MOST_NAME)}</bdi>",
        # A program that is killed tells nobody.
        "<p>This page says in a moment how it went. If it does not, look where you started the login.</p>",
    )
    return page[: page.index(_END)]


def rest_of(page: str) -> str:
    """What makes of a ``waiting_page`` this one, in the eyes of a person."""
    # No selector says "the last one" of a page that is not whole yet, in every browser.
    return "<style>.waiting { display: none; }</style>\n" + page[page.index("<main") :]


def succeeded_page(server: str) -> str:
    """The login is done, and stored."""
    return _page(
        "good",
        _CHECK,
        "Logged in",
        f"Logged in to <bdi>{_plain(server, MOST_NAME)}</bdi>",
        "<p>You can close this page.</p>",
    )


def failed_page(server: str, reason: str) -> str:
    """The login came to nothing."""
    return _page(
        "bad",
        _CROSS,
        "Not logged in",
        f"The login to <bdi>{_plain(server, MOST_NAME)}</bdi> did not succeed",
        f"<blockquote><bdi>{_plain(reason, MOST_REASON)}</bdi></blockquote>\n"
        "<p>To try again, start the login anew where you started it. You can close this page.</p>",
    )


def stray_page() -> str:
    """A request that is not the answer of any login that waits here."""
    return _page(
        "idle",
        _DOTS,
        "Not of this login",
        "This is not the answer of a login that waits here",
        "<p>It may belong to an earlier login, or its address was cut short. It has changed nothing: a login that is "
        "under way still waits for its own answer.</p>\n"
        "<p>You can close this page.</p>",
    )


def _page(tone: str, sign: str, title: str, heading: str, text: str) -> str:
    return _PAGE.format(tone=tone, sign=sign, title=title, heading=heading, text=text)


def _plain(text: str, most: int) -> str:
    """In one line, without what is unseen or turns text around, and escaped."""
    return escape(first_words(text.encode("utf-8", "replace"), most)) or "…"
