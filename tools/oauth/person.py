"""The person of `make demo-oauth`: what `moor login` opens in place of a browser.

    python person.py NAME PASSWORD LOG URL

Goes over the pages that the URL leads to, with cookies: signs in, says yes, and follows the last redirect to the
listener of `moor login`. What was done is written to LOG, a line for each step, without the code. Standard library
only.
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from html import unescape
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

MOST_FORMS = 5
PAGE_SECONDS = 30.0


class Form(HTMLParser):
    """The first form of a page, and its last heading."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.feed(page)
        # The last one: a page may grow, and say at first that it waits.
        headings = re.findall(r"(?s)<h1[^>]*>(.*?)</h1>", page)
        self.heading = unescape(re.sub(r"<[^>]+>", "", headings[-1])).strip() if headings else ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if tag == "form" and self.action is None:
            self.action = facts.get("action") or ""
        elif tag == "input" and facts.get("name"):
            self.fields[str(facts["name"])] = facts.get("value") or ""


def walk(name: str, password: str, url: str) -> list[str]:
    """What was done, in words."""
    done = [f"opened {_place(url)}"]
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
    )
    body: bytes | None = None
    for _ in range(MOST_FORMS):
        try:
            answer = opener.open(url, body, timeout=PAGE_SECONDS)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            url, page = answer.geturl(), answer.read().decode(errors="replace")
        form = Form(page)
        if form.action is None:
            done.append(f"ended at {_place(url)}, which says “{form.heading or 'nothing'}”")
            return done
        if "login" in form.fields:
            form.fields |= {"login": name, "password": password}
            done.append(f"signed in as {name}")
        else:
            done.append("was asked whether Moorings may do this, and said yes")
        url, body = urljoin(url, form.action), urlencode(form.fields).encode()
    return [*done, f"gave up after {MOST_FORMS} forms"]


def _place(url: str) -> str:
    """Where it is, without what is secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{'…' if parts.path.strip('/') or parts.query else ''}"


def main(name: str, password: str, log: str, url: str) -> None:
    try:
        done = walk(name, password, url)
    except OSError as error:
        done = [f"could not go on: {error}"]
    Path(log).write_text("".join(f"{line}\n" for line in done), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:5])
