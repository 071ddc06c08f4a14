"""A host on the official Python SDK: py_client.py TRANSPORT ERA EXPECTED-SKILLS FOLDER TARGET…

Prints `ok STEP` for each step that passes, and exits with an error at the first that fails.
"""

import asyncio
import base64
import hashlib
import os
import sys
import time
import warnings
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPDeprecationWarning
from pydantic import ConfigDict, RootModel

# The deprecated way to subscribe is tested here.
warnings.simplefilter("ignore", MCPDeprecationWarning)
TRANSPORT, ERA, EXPECTED, FOLDER, *TARGET = sys.argv[1:]
MODERN = ERA == "2026-07-28"
SKILLS = "io.modelcontextprotocol/skills"


class Params(types.RequestParams):
    model_config = ConfigDict(extra="allow")


class AsIs(RootModel[dict[str, Any]]):
    pass


def ok(step: str) -> None:
    print(f"ok {step}", flush=True)


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    request = types.Request[Params, str](method=method, params=Params.model_validate(params))
    return (await client.session.send_request(request, AsIs)).root


async def read(client: Client, uri: str) -> bytes:
    (content,) = (await client.read_resource(uri)).contents
    assert str(content.uri) == uri
    text = getattr(content, "text", None)
    return text.encode() if text is not None else base64.b64decode(content.blob)


async def refused(work: Any) -> MCPError:
    try:
        await work
    except MCPError as error:
        return error
    raise AssertionError("was not refused")


async def walk(client: Client) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    cursor, pages = None, 0
    while pages == 0 or cursor:
        page = await ask(client, "skills/list", **({"cursor": cursor} if cursor else {}))
        assert page.get("cacheScope") == ("private" if MODERN else None)
        assert page.get("resultType") == ("complete" if MODERN else None)
        for entry in page["skills"]:
            assert entry["uri"] not in entries, f"{entry['uri']} is on two pages"
            entries[entry["uri"]] = entry
        cursor, pages = page.get("nextCursor"), pages + 1
    assert len(entries) == int(EXPECTED) and pages > 40
    return entries


async def edited(client: Client, seen: list[Any]) -> float:
    """Edits the live skill until its notification is fast enough; returns the best time."""
    uri, file = "skill://live/SKILL.md", Path(FOLDER, "live/SKILL.md")

    def edit() -> float:
        file.write_text(f"{file.read_text()}\nEdited by python {TRANSPORT} {ERA}.\n")
        return time.monotonic()

    best = float("inf")
    if MODERN:
        filters = {"resources_list_changed": True, "resource_subscriptions": [uri]}
        async with client.listen(**filters) as subscription:
            for _ in range(3):
                start = edit()
                with anyio.fail_after(10):
                    async for event in subscription:
                        if isinstance(event, ResourceUpdated) and str(event.uri) == uri:
                            break
                best = min(best, time.monotonic() - start)
                if best <= 1:
                    break
        return best
    await client.subscribe_resource(uri)
    for _ in range(3):
        seen.clear()
        start = edit()
        with anyio.fail_after(10):
            while not any(
                getattr(note, "method", "") == "notifications/resources/updated"
                and str(note.params.uri) == uri
                for note in seen
            ):
                await anyio.sleep(0.005)
        best = min(best, time.monotonic() - start)
        if best <= 1:
            break
    await client.unsubscribe_resource(uri)
    return best


async def main() -> None:
    seen: list[Any] = []

    async def on_message(message: Any) -> None:
        if not isinstance(message, Exception):
            seen.append(message)

    async with AsyncExitStack() as stack:
        if TRANSPORT == "stdio":
            environment = {
                "REPERTOIRE_HOME": os.environ["REPERTOIRE_HOME"],
                "REPERTOIRE_NO_SYSTEM_SKILLS": "1",
            }
            server: Any = StdioServerParameters(
                command=TARGET[0], args=TARGET[1:], env=environment
            )
        else:
            token = os.environ.get("INTEROP_TOKEN")
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
            server = streamable_http_client(TARGET[0], http_client=http)
        client = await stack.enter_async_context(
            Client(
                server,
                mode=ERA if MODERN else "legacy",
                cache=None,
                read_timeout_seconds=30,
                message_handler=on_message,
                client_info=types.Implementation(name="interop", version="1.0.0"),
                extensions=[advertise(SKILLS, {})],
            )
        )
        if MODERN:
            # With a pinned revision the client sends no discovery request by itself.
            found = await client.session.send_discover(ERA)
            client.session.adopt(types.DiscoverResult.model_validate(found))
        assert client.protocol_version == ERA
        assert client.server_capabilities.extensions[SKILLS] == {"directoryRead": True}
        assert "skills_list" in client.instructions
        ok("connect")

        entries = await walk(client)
        ok(f"page through {len(entries)} skills")

        listed, cursor, first = set(), None, True
        while first or cursor:
            page = await client.list_resources(cursor=cursor)
            listed |= {str(resource.uri) for resource in page.resources}
            cursor, first = page.next_cursor, False
        assert entries.keys() <= listed and "skill://index.json" in listed
        assert "skill://picture/assets/dot.png" not in listed
        ok("list resources")

        skill = (await ask(client, "skills/get", uri="skill://picture/SKILL.md"))["skill"]
        assert skill == entries["skill://picture/SKILL.md"]
        for file in skill["resources"]:
            data = await read(client, file["uri"])
            assert len(data) == file["size"]
            assert "sha256:" + hashlib.sha256(data).hexdigest() == file["digest"]
        ok("get a skill and verify its files")

        picture = await read(client, "skill://picture/assets/dot.png")
        assert picture == Path(FOLDER, "picture/assets/dot.png").read_bytes()
        ok("read a binary file")

        directory = await ask(client, "resources/directory/read", uri="skill://picture")
        kinds = {child["name"]: child["mimeType"] for child in directory["resources"]}
        assert kinds["assets"] == "inode/directory"
        ok("read a directory")

        document = (await read(client, "skill://picture/SKILL.md")).decode()
        notes = (await read(client, "skill://picture/notes.md")).decode()
        (message,) = (await client.get_prompt("picture", {})).messages
        assert message.content.text == f"{document}\n--- notes.md ---\n{notes}"
        ok("a prompt has the bytes of the resources")

        fetched = await client.call_tool("skill__fetch", {"uri": "skill://picture/SKILL.md"})
        assert fetched.content[0].text == f"# skill://picture/SKILL.md\n\n{document}"
        assert (await client.call_tool("skill__fetch", {})).is_error
        ok("call the tools")

        reference = types.ResourceTemplateReference(uri="skill://{+id}/SKILL.md")
        completed = await client.complete(reference, {"name": "id", "value": "pict"})
        assert completed.completion.values == ["picture"]
        ok("complete an id")

        error = await refused(read(client, "skill://missing/SKILL.md"))
        assert error.code == (-32602 if MODERN else -32002), error
        assert "skill://missing/SKILL.md" in error.message
        error = await refused(ask(client, "skills/get", uri="skill://missing/SKILL.md"))
        assert error.code == -32602 and "skill://missing/SKILL.md" in error.message
        error = await refused(ask(client, "resources/directory/read", uri="skill://live/SKILL.md"))
        assert error.code == -32602 and "skill://live/SKILL.md" in error.message
        ok("unknown URIs are named")

        took = await edited(client, seen)
        assert took <= 1, f"the fastest notification took {took} s"
        ok(f"an edit on disk is reported in {took * 1000:.0f} ms")
    ok("close")


asyncio.run(main())
