"""FastMCP, agent-framework and the Python SDK on skills as people write them.

    frameworks.py client URL EXPECTED     read our server
    frameworks.py provider KIND FOLDER    serve a folder over stdio, for our client to read

Prints `ok STEP` for each step that passes, and exits with an error at the first that fails.
"""

import asyncio
import base64
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import mcp_types as types
from pydantic import ConfigDict, RootModel


def ok(step: str) -> None:
    print(f"ok {step}", flush=True)


async def use_fastmcp(url: str, expected: list[dict]) -> None:
    from fastmcp import Client
    from fastmcp.skills import SkillsClientExtension

    async with Client(url, extensions=[SkillsClientExtension()]) as client:
        skills = await client.list_skills()
        listed = {one["uri"] for one in expected if one["listed"]}
        assert {skill.uri for skill in skills} == listed
        ok(f"FastMCP lists {len(skills)} skills")
        for skill in skills:
            read = await client.read_skill(skill.uri)
            document = next(one["document"] for one in expected if one["uri"] == skill.uri)
            assert document is None or read.files["SKILL.md"] == document.encode(), skill.uri
        ok("FastMCP verifies and reads them")
        for one in expected:
            (content,) = await client.read_resource(one["uri"])
            assert one["document"] in (None, content.text), one["uri"]
        ok("FastMCP reads what is not listed")


async def use_agent_framework(url: str, expected: list[dict]) -> None:
    from agent_framework import MCPSkillsSource, SkillsSourceContext
    from mcp import Client

    async with Client(url) as client:
        source = MCPSkillsSource(client=client)
        skills = await source.get_skills(SkillsSourceContext(agent=None))
        listed = {one["uri"].split("/")[-2]: one for one in expected if one["listed"]}
        names = {skill.frontmatter.name for skill in skills}
        assert names == set(listed), names ^ set(listed)
        ok(f"agent-framework finds {len(skills)} skills")
        for skill in skills:
            content = await skill.get_content()
            document = listed[skill.frontmatter.name]["document"]
            assert document is None or document.strip() in content, skill
        ok("agent-framework reads them")


class Params(types.RequestParams):
    model_config = ConfigDict(extra="allow")


class AsIs(RootModel[dict[str, Any]]):
    pass


async def list_skills(client: Any) -> list[dict[str, Any]]:
    """All pages of skills/list, which the SDK sends as a request of its own."""
    skills: list[dict[str, Any]] = []
    cursor = None
    while True:
        params = Params.model_validate({"cursor": cursor} if cursor else {})
        request = types.Request[Params, str](method="skills/list", params=params)
        page = (await client.session.send_request(request, AsIs)).root
        skills += page["skills"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return skills


async def use_sdk(url: str, expected: list[dict]) -> None:
    from mcp import Client
    from mcp.client import advertise

    extensions = [advertise("io.modelcontextprotocol/skills", {})]
    async with Client(url, cache=None, extensions=extensions) as client:
        skills = await list_skills(client)
        assert {skill["uri"] for skill in skills} == {one["uri"] for one in expected if one["listed"]}
        ok(f"the Python SDK lists {len(skills)} skills")
        files = 0
        for skill in skills:
            for file in skill["resources"]:
                (content,) = (await client.read_resource(file["uri"])).contents
                text = getattr(content, "text", None)
                data = text.encode() if text is not None else base64.b64decode(content.blob)
                digest = "sha256:" + hashlib.sha256(data).hexdigest()
                assert (file["digest"], file["size"]) == (digest, len(data)), file
                files += 1
        ok(f"the Python SDK verifies and reads their {files} files")
        found = set()
        cursor = None
        while True:
            page = await client.list_resources(cursor=cursor)
            found |= {str(resource.uri) for resource in page.resources}
            cursor = page.next_cursor
            if cursor is None:
                break
        missing = {one["uri"] for one in expected} - found
        assert not missing, missing
        ok("the Python SDK lists every skill as a resource")
        for one in expected:
            (content,) = (await client.read_resource(one["uri"])).contents
            assert one["document"] in (None, content.text), one["uri"]
        ok("the Python SDK reads what is not listed")


def provide(kind: str, folder: str) -> None:
    from fastmcp import FastMCP

    warnings.simplefilter("ignore")
    if kind == "final":
        from fastmcp.skills.provider import SkillsDirectoryProvider
    else:
        from fastmcp.server.providers.skills import SkillsDirectoryProvider
    server = FastMCP("provider")
    server.add_provider(SkillsDirectoryProvider(Path(folder)))
    server.run(transport="stdio", show_banner=False)


match sys.argv[1:]:
    case ["client", url, expected_file]:
        expected = json.loads(Path(expected_file).read_text())
        for use in (use_fastmcp, use_agent_framework, use_sdk):
            asyncio.run(use(url, expected))
    case ["provider", kind, folder]:
        provide(kind, folder)
