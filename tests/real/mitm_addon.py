"""What mitmproxy does to requests, as ``middleboxes.mitmproxy`` was told. Run inside mitmdump: imports nothing of ours.

``MITM_SCRIPT`` is JSON: {JSON-RPC or HTTP method: a word, or a list of them, one for each request, the last for ever}.
Words: ``ok`` | ``503`` (or any status) | ``503:2`` (with Retry-After: 2) | ``kill`` (the request never reaches the
server) | ``kill_answer`` (the server has answered, the client never hears it). Each request is told on stdout as
``method word``.
"""

import json
import os
from collections import Counter

from mitmproxy import http

SCRIPT = json.loads(os.environ["MITM_SCRIPT"])
TURNS = Counter()


def request(flow: http.HTTPFlow) -> None:
    try:
        method = json.loads(flow.request.get_text() or "{}").get("method", flow.request.method)
    except ValueError:
        method = flow.request.method
    key = method if method in SCRIPT else flow.request.method
    words = SCRIPT.get(key, "ok")
    if isinstance(words, list):
        word = words[min(TURNS[key], len(words) - 1)]
        TURNS[key] += 1
    else:
        word = words
    print(method, word, flush=True)
    flow.metadata["word"] = word
    if word == "kill":
        flow.kill()
    elif word[:3].isdigit():
        status, _, later = word.partition(":")
        headers = {"Content-Type": "text/plain", **({"Retry-After": later} if later else {})}
        flow.response = http.Response.make(int(status), b"no luck today", headers)


def responseheaders(flow: http.HTTPFlow) -> None:
    if flow.metadata.get("word") == "kill_answer":
        flow.kill()
    elif "event-stream" in flow.response.headers.get("content-type", ""):
        flow.response.stream = True  # it would wait for the end of the stream
