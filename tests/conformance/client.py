"""The client that the MCP conformance suite drives: one run, one scenario, on the public door of Moorings alone.

The suite starts ``python client.py URL`` with the scenario's name in MCP_CONFORMANCE_SCENARIO. A check that nothing
exercises is SKIPPED, which looks green, so each scenario here does all that its checks look for:

    initialize                            be initialized; the probe before it is answered 200 with an empty result
    tools_call                            list, then ``add_numbers`` with two numbers
    elicitation-sep1034-client-defaults   the tool asks on the listening GET stream; accept with the defaults
    sse-retry                             the answer stream ends after a priming event; it is resumed after ``retry`` ms
    request-metadata                      declare roots, sampling and elicitation; ask again after -32022
    sep-2322-client-request-state         four tools; the unrelated one is called while a question is open; one
                                          result has no ``resultType``
    http-standard-headers                 tools, resources and prompts are listed and used; ``initialize`` and
                                          ``notifications/initialized`` too, as raw messages
    http-custom-headers                   the calls that MCP_CONFORMANCE_CONTEXT lists
    http-invalid-tool-headers             call whatever is listed
    json-schema-ref-no-deref              list
    json-schema-2020-12-preservation      give the schema of one tool to the other, as it came
    sep-2640-client-no-prefetch           ``skills/list``, and no read
    sep-2640-client-verify-*              ``skills/list``, read SKILL.md, verify, and go no further
    auth/*                                log in, list, call; what MCP_CONFORMANCE_CONTEXT holds (clients, keys, tokens)
                                          becomes ``AuthSettings``, and a plain HTTP client is the browser
    auth/scope-retry-limit                the call ends typed, after few logins
    auth/resource-mismatch, auth/metadata-issuer-mismatch, auth/iss-* that lie
                                          no token is asked for, and the host says that a login is needed, and why
    auth/wif-jwt-bearer                   then once more with scopes that are refused: that must end it, too

Imports are few on purpose: the suite starts all scenarios at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import msgspec

from moorings import (
    AsyncHost,
    AuthSettings,
    Bounds,
    CreateMessageResult,
    CredentialSettings,
    ElicitResult,
    Handlers,
    HttpServer,
    LoginPrompt,
    NeedsLogin,
    Root,
    SkillMismatch,
    TextContent,
)

S = "server"
PATIENCE = 30.0
BOUNDS = Bounds(probe=60.0, connect=120.0)
"""The suite starts dozens of clients at once, and is itself all their servers: a probe that is slow says nothing."""

Scenario = Callable[[AsyncHost], Awaitable[None]]


class Questions:
    """Answers what servers ask. A form is accepted with its defaults, once ``may_answer`` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()

    async def elicit(self, server: str, question: Any) -> ElicitResult:
        self.asked.set()
        await self.may_answer.wait()
        fields = question.requested_schema.get("properties", {})
        return ElicitResult("accept", {name: part.get("default", True) for name, part in fields.items()})

    async def sample(self, server: str, question: Any) -> CreateMessageResult:
        return CreateMessageResult(content=TextContent("well"), model="none")


QUESTIONS = Questions()


async def call(host: AsyncHost, tool: str, arguments: dict[str, Any] | None = None) -> str:
    result = await host.call((S, tool), arguments or {}, timeout=PATIENCE)
    assert not result.is_error, result
    return result.text


async def lists(host: AsyncHost) -> None:
    await host.tools(servers=[S])


async def tools_call(host: AsyncHost) -> None:
    await host.tools(servers=[S])
    assert "8" in await call(host, "add_numbers", {"a": 5, "b": 3})


async def elicitation_defaults(host: AsyncHost) -> None:
    assert "completed" in await call(host, "test_client_elicitation_defaults")


async def sse_retry(host: AsyncHost) -> None:
    assert "successfully" in await call(host, "test_reconnection")


async def request_state(host: AsyncHost) -> None:
    await host.tools(servers=[S])
    QUESTIONS.may_answer.clear()
    asking = asyncio.ensure_future(call(host, "test_mrtr_echo_state"))
    asked = asyncio.ensure_future(QUESTIONS.asked.wait())
    await asyncio.wait({asking, asked}, return_when=asyncio.FIRST_COMPLETED)
    assert await call(host, "test_mrtr_unrelated") == "unrelated-ok"
    QUESTIONS.may_answer.set()
    assert await asking == "echo-state-ok"
    assert await call(host, "test_mrtr_no_state") == "no-state-ok"
    assert await call(host, "test_mrtr_no_result_type") == "no-result-type-test-ok"


async def standard_headers(host: AsyncHost) -> None:
    for tool in await host.tools(servers=[S]):
        await call(host, tool.tool.name)
    for each in await host.resources(servers=[S]):
        await host.read_resource(each.resource.uri, server=S, timeout=PATIENCE)
    for prompt in await host.prompts(servers=[S]):
        await host.get_prompt(prompt.name, timeout=PATIENCE)
    # The scenario looks at the headers of these two as well, which a client of this era sends only if told to.
    info = {"name": "moorings-conformance", "version": "1"}
    version = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "2026-07-28")
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
    await host.request(S, "initialize", params, timeout=PATIENCE, any_era=True)
    await host.notify(S, "notifications/initialized")


async def custom_headers(host: AsyncHost) -> None:
    await host.tools(servers=[S])
    for each in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await call(host, each["name"], each["arguments"])


async def invalid_tool_headers(host: AsyncHost) -> None:
    for tool in await host.tools(servers=[S]):
        fields = tool.input_schema.get("properties", {})
        await call(host, tool.tool.name, dict.fromkeys(fields, "somewhere"))


async def schema_preservation(host: AsyncHost) -> None:
    tools = {tool.tool.name: tool for tool in await host.tools(servers=[S])}
    focal = next(tool for name, tool in tools.items() if name != "json_schema_echo")
    await call(host, "json_schema_echo", {"schema": focal.input_schema})


# --- skills ---------------------------------------------------------------------------------------


async def skills_listed(host: AsyncHost) -> None:
    assert await host.skills(S, timeout=PATIENCE)


async def skills_verified(host: AsyncHost) -> None:
    for skill in await host.skills(S, timeout=PATIENCE):
        try:
            for file in skill.resources:
                await host.read_skill(skill, file.uri, timeout=PATIENCE)
        except SkillMismatch as error:
            print(error, file=sys.stderr)
            return
    raise AssertionError("a skill that was tampered with was taken")


# --- authorization --------------------------------------------------------------------------------


CIMD = "https://conformance-test.local/client-metadata.json"
"""The client document that the suite takes."""


def login(name: str) -> AuthSettings:
    """How tokens are got, from what the suite tells."""
    told = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    client = {"client_id": told.get("client_id"), "client_secret": told.get("client_secret")}
    if name == "auth/basic-cimd":
        return AuthSettings(client_metadata_url=CIMD)
    if name == "auth/pre-registration":
        return AuthSettings(**client, issuer=told["issuer"])
    if name == "auth/client-credentials-jwt":
        return AuthSettings(
            client_id=told["client_id"],
            private_key=told["private_key_pem"],
            private_key_alg=told["signing_algorithm"],
            flow="client_credentials",
        )
    if name == "auth/client-credentials-basic":
        return AuthSettings(**client, flow="client_credentials")
    if name == "auth/enterprise-managed-authorization":
        return AuthSettings(
            **client,
            idp_issuer=told["idp_issuer"],
            idp_client_id=told["idp_client_id"],
            idp_token=told["idp_id_token"],
        )
    if name == "auth/wif-jwt-bearer":
        return AuthSettings(client_id=told["client_id"], assertion=told["valid_jwt"])
    return AuthSettings()


def protected_host(url: str, auth: AuthSettings) -> AsyncHost:
    return AsyncHost(
        {S: HttpServer(url=url, auth=auth, bounds=BOUNDS)},
        state_dir=False,
        credentials=CredentialSettings(store="memory"),
        on_login_url=person,
    )


async def person(prompt: LoginPrompt) -> str | None:
    """A person who says yes: goes where the login leads, to its end at our listener, or pastes where there is none."""
    url, end = prompt.url, parse_qs(urlsplit(prompt.url).query)["redirect_uri"][0]
    assert end == prompt.redirect_uri
    for _ in range(10):
        at = urlsplit(url)
        assert at.scheme == "http" and at.hostname, url
        reader, writer = await asyncio.open_connection(at.hostname, at.port or 80)
        try:
            target = f"{at.path or '/'}?{at.query}"
            writer.write(f"GET {target} HTTP/1.1\r\nHost: {at.netloc}\r\nConnection: close\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        finally:
            writer.close()
        places = [line[9:].strip() for line in head.split("\r\n") if line.lower().startswith("location:")]
        assert places, f"the login leads nowhere: {head.splitlines()[0]}"
        url = urljoin(url, places[0])
        if url.startswith(end):
            if not prompt.listening:
                return url
            at = urlsplit(url)
            _, writer = await asyncio.open_connection(at.hostname, at.port)
            writer.write(f"GET {at.path}?{at.query} HTTP/1.1\r\nHost: {at.netloc}\r\n\r\n".encode())
            writer.close()
            return None
    raise AssertionError("the login leads from one place to the next")


async def protected(host: AsyncHost) -> None:
    for tool in await host.tools(servers=[S]):
        await call(host, tool.tool.name)


async def turned_away(host: AsyncHost) -> None:
    try:
        await protected(host)
        await call(host, "test-tool")
    except NeedsLogin as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        return
    raise AssertionError("served, though there can be no token")


async def workload(host: AsyncHost) -> None:
    await protected(host)
    # Whoever is refused must not try again, nor by another grant; the suite warns of either.
    refused = msgspec.structs.replace(login("auth/wif-jwt-bearer"), scopes=("wif.trigger-unauthorized",))
    async with protected_host(sys.argv[-1], refused) as other:
        await other.wait_ready(BOUNDS.connect)
        await turned_away(other)


SCENARIOS: dict[str, Scenario] = {
    "initialize": lists,
    "tools_call": tools_call,
    "elicitation-sep1034-client-defaults": elicitation_defaults,
    "sse-retry": sse_retry,
    "request-metadata": lists,
    "sep-2322-client-request-state": request_state,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": invalid_tool_headers,
    "json-schema-ref-no-deref": lists,
    "json-schema-2020-12-preservation": schema_preservation,
    "sep-2640-client-no-prefetch": skills_listed,
    "sep-2640-client-verify-digest": skills_verified,
    "sep-2640-client-verify-size": skills_verified,
    "sep-2640-client-verify-frontmatter": skills_verified,
    "auth/scope-retry-limit": turned_away,
    "auth/resource-mismatch": turned_away,
    "auth/metadata-issuer-mismatch": turned_away,
    "auth/iss-supported-missing": turned_away,
    "auth/iss-wrong-issuer": turned_away,
    "auth/iss-unexpected": turned_away,
    "auth/iss-normalized": turned_away,
    "auth/wif-jwt-bearer": workload,
}
"""Those of ``auth/`` that do something else than ``protected``."""


async def main(url: str) -> None:
    name = os.environ["MCP_CONFORMANCE_SCENARIO"]
    scenario = SCENARIOS.get(name) or (protected if name.startswith("auth/") else None)
    if scenario is None:
        sys.exit(f"no scenario {name!r} here")
    if name.startswith("auth/"):
        host = protected_host(url, login(name))
    else:
        handlers = Handlers(elicit=QUESTIONS.elicit, sample=QUESTIONS.sample, roots=(Root("file:///tmp"),))
        host = AsyncHost({S: HttpServer(url=url, bounds=BOUNDS)}, handlers=handlers, state_dir=False)
    async with host:
        await host.wait_ready(BOUNDS.connect)
        await scenario(host)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
