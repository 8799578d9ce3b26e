"""The same scenarios under the official SDK 2.3.0, for the table in the docs: what ``client.py`` does, on its door.

Run by the interpreter of the SDK's own environment; imports nothing of ours.
"""

import asyncio
import json
import os
import sys
from urllib.parse import parse_qs, urlsplit

import httpx2
import mcp.types as types
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata

CALLBACK = "http://127.0.0.1:33418/callback"
LIES = (
    *("auth/scope-retry-limit", "auth/resource-mismatch", "auth/metadata-issuer-mismatch"),
    *("auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized"),
)
"""Where an error is what must come of it."""


async def elicit(context, question):
    fields = (question.requested_schema or {}).get("properties", {})
    return types.ElicitResult(
        action="accept", content={name: part.get("default", True) for name, part in fields.items()}
    )


async def sample(context, question):
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text="well"), model="none"
    )


async def roots(context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///tmp")])


async def scenario(name: str, client: Client) -> None:
    tools = (await client.list_tools()).tools
    if name == "tools_call":
        await client.call_tool("add_numbers", {"a": 5, "b": 3})
    elif name in ("elicitation-sep1034-client-defaults", "sse-retry"):
        await client.call_tool(tools[0].name, {})
    elif name == "sep-2322-client-request-state":
        await asyncio.gather(
            client.call_tool("test_mrtr_echo_state", {}), client.call_tool("test_mrtr_unrelated", {})
        )
        await client.call_tool("test_mrtr_no_state", {})
        await client.call_tool("test_mrtr_no_result_type", {})
    elif name == "http-standard-headers":
        for tool in tools:
            await client.call_tool(tool.name, {})
        for resource in (await client.list_resources()).resources:
            await client.read_resource(str(resource.uri))
        for prompt in (await client.list_prompts()).prompts:
            await client.get_prompt(prompt.name)
    elif name == "http-custom-headers":
        for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
            await client.call_tool(call["name"], call["arguments"])
    elif name == "http-invalid-tool-headers":
        for tool in tools:
            fields = tool.input_schema.get("properties", {})
            await client.call_tool(tool.name, dict.fromkeys(fields, "somewhere"))
    elif name.startswith("auth/"):
        for tool in tools:
            await client.call_tool(tool.name, {})
    elif name == "json-schema-2020-12-preservation":
        (focal,) = [tool for tool in tools if tool.name != "json_schema_echo"]
        await client.call_tool("json_schema_echo", {"schema": focal.input_schema})


# --- authorization ----------------------------------------------------------------------------------------------------


class Memory:
    """Keeps a login."""

    def __init__(self, client=None):
        self.tokens, self.client = None, client

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


class Person:
    """Says yes to every login."""

    def __init__(self):
        self.came_back = ""

    async def go(self, url):
        async with httpx2.AsyncClient() as http:
            self.came_back = (await http.get(url)).headers["Location"]

    async def back(self):
        given = parse_qs(urlsplit(self.came_back).query)
        return AuthorizationCodeResult(
            **{key: given[key][0] for key in ("code", "state", "iss") if key in given}
        )


def vouched(url, told):
    """The company's identity provider, which the SDK leaves to its user, and the server it vouches at."""
    place = urlsplit(url)._replace(path="/.well-known/oauth-protected-resource" + urlsplit(url).path).geturl()
    issuer = httpx2.get(place).json()["authorization_servers"][0]

    async def id_jag(audience, resource):
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": told["idp_id_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": audience,
            "resource": resource,
            "client_id": told["idp_client_id"],
        }
        async with httpx2.AsyncClient() as http:
            return (await http.post(told["idp_token_endpoint"], data=form)).json()["access_token"]

    return IdentityAssertionOAuthProvider(
        url,
        Memory(),
        client_id=told["client_id"],
        client_secret=told["client_secret"],
        issuer=issuer,
        assertion_provider=id_jag,
        token_endpoint_auth_method="client_secret_basic",
    )


def provider(name, url):
    told = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    if name == "auth/client-credentials-basic":
        return ClientCredentialsOAuthProvider(url, Memory(), told["client_id"], told["client_secret"])
    if name == "auth/client-credentials-jwt":
        signing = SignedJWTParameters(
            issuer=told["client_id"],
            subject=told["client_id"],
            signing_key=told["private_key_pem"],
            signing_algorithm=told["signing_algorithm"],
        )
        signed = signing.create_assertion_provider()
        return PrivateKeyJWTOAuthProvider(url, Memory(), told["client_id"], signed)
    if name == "auth/enterprise-managed-authorization":
        return vouched(url, told)
    known = None
    if name == "auth/pre-registration":
        known = OAuthClientInformationFull(
            client_id=told["client_id"],
            client_secret=told["client_secret"],
            redirect_uris=[CALLBACK],
            token_endpoint_auth_method="client_secret_basic",
            issuer=told["issuer"],
        )
    person = Person()
    return OAuthClientProvider(
        url,
        OAuthClientMetadata(client_name="conformance", redirect_uris=[CALLBACK]),
        Memory(known),
        redirect_handler=person.go,
        callback_handler=person.back,
        client_metadata_url=(
            "https://conformance-test.local/client-metadata.json" if name == "auth/basic-cimd" else None
        ),
    )


async def protected(name: str, url: str, callbacks) -> None:
    async with httpx2.AsyncClient(auth=provider(name, url), timeout=30) as http:
        try:
            async with Client(streamable_http_client(url, http_client=http), **callbacks) as client:
                await scenario(name, client)
        except Exception as error:
            if name not in LIES:
                raise
            print(repr(error), file=sys.stderr)


async def main(url: str) -> None:
    callbacks = {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}
    name = os.environ["MCP_CONFORMANCE_SCENARIO"]
    if name.startswith("sep-2640"):
        sys.exit("nothing in the SDK answers to it (skills)")
    if name.startswith("auth/"):
        await protected(name, url, callbacks)
        return
    async with Client(url, **callbacks) as client:
        await scenario(name, client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
