"""What mitmproxy does to requests, as ``middleboxes.mitmproxy`` was told. Run inside mitmdump: imports nothing of ours.

``MITM_SCRIPT`` is JSON: {JSON-RPC or HTTP method: a word, or a list of them, one for each request, the last for ever}.
Words: ``ok`` | ``503`` (or any status) | ``kill`` (the request never reaches the server) | ``kill_answer`` (the server
has answered, the client never hears it). Each request is told on stdout as ``method word``.
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
    elif word.isdigit():
        flow.response = http.Response.make(int(word), b"no luck today", {"Content-Type": "text/plain"})


def responseheaders(flow: http.HTTPFlow) -> None:
    if flow.metadata.get("word") == "kill_answer":
        flow.kill()
    elif "event-stream" in flow.response.headers.get("content-type", ""):
        flow.response.stream = True  # it would wait for the end of the stream
