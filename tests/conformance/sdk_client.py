"""The same scenarios under the official SDK 2.3.0, for the table in the docs: what ``client.py`` does, on its door.

Run by the interpreter of the SDK's own environment; imports nothing of ours.
"""

import asyncio
import json
import os
import sys

import mcp.types as types
from mcp import Client


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
    elif name == "json-schema-2020-12-preservation":
        (focal,) = [tool for tool in tools if tool.name != "json_schema_echo"]
        await client.call_tool("json_schema_echo", {"schema": focal.input_schema})


async def main(url: str) -> None:
    callbacks = {"elicitation_callback": elicit, "sampling_callback": sample, "list_roots_callback": roots}
    name = os.environ["MCP_CONFORMANCE_SCENARIO"]
    if name.startswith(("auth/", "sep-2640")):
        sys.exit("not looked at here, or nothing in the SDK answers to it (skills)")
    async with Client(url, **callbacks) as client:
        await scenario(name, client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
