"""Skills through the host and a handle, async and blocking, in both eras: listed without a read, read only verified."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Any, Literal

import pytest

from moorings import AmbiguousDelivery, AsyncHost, Host, MisuseError, NotSent, Refused, Skill, SkillMismatch
from moorings.config.memory import MemoryLine, MemoryPeer
from moorings.testing import MemoryServer
from moorings.testing.peer import Peer, RpcFault
from moorings.wire.eras import META_CAPABILITIES, SKILLS

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
URI = "skill://pdf-processing/SKILL.md"
FORMS = "skill://pdf-processing/references/FORMS.md"
HEAD = {"name": "pdf-processing", "description": "Fill in forms"}
TEXT = "---\nname: pdf-processing\ndescription: Fill in forms\n---\n\nSkill body.\n"
MORE = "Supporting content.\n"


def listed(uri: str, text: str) -> dict[str, Any]:
    return {
        "uri": uri,
        "digest": "sha256:" + hashlib.sha256(text.encode()).hexdigest(),
        "size": len(text.encode()),
    }


def entry(uri: str = URI, **members: Any) -> dict[str, Any]:
    files = [listed(uri, TEXT), listed(uri.replace("SKILL.md", "references/FORMS.md"), MORE)]
    return {"uri": uri, "frontmatter": HEAD, "resources": files, **members}


class SkillServer(MemoryServer):
    """A server with skills: pages of entries, and files that may be others than these say."""

    def __init__(self, *pages: list[dict[str, Any]], era: Literal["handshake", "modern"] = "modern") -> None:
        super().__init__("docs", era=era)
        self.pages = pages
        self.declared: Any = {}
        self.served = {URI: TEXT, FORMS: MORE}
        self.asked: list[tuple[str, Any]] = []
        self.capabilities: dict[str, Any] = {}

        @self.resource("skill://{skill}/SKILL.md", mime_type="text/markdown")
        def head(skill: str) -> str:
            return self.read(f"skill://{skill}/SKILL.md")

        @self.resource("skill://{skill}/references/{file}", mime_type="text/markdown")
        def file(skill: str, file: str) -> str:
            return self.read(f"skill://{skill}/references/{file}")

    def read(self, uri: str) -> str:
        self.asked.append(("resources/read", uri))
        return self.served[uri]

    def open_line(self, line: MemoryLine) -> MemoryPeer:
        peer = SkillPeer(self, line)
        self._peers.add(peer)
        return peer


class SkillPeer(Peer):
    """One connection to it."""

    server: SkillServer

    def known(self, id_: Any, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        server = self.server
        if method == "skills/list":
            cursor = params.get("cursor")
            server.asked.append((method, cursor))
            page = int(cursor or 0)
            more = {"nextCursor": str(page + 1)} if page + 1 < len(server.pages) else {}
            return {"skills": server.pages[page] if server.pages else [], **more}
        if method == "skills/get":
            server.asked.append((method, params["uri"]))
            found = [each for page in server.pages for each in page if each.get("uri") == params["uri"]]
            if not found:
                raise RpcFault(-32602, "no such skill")
            return {"skill": found[0]}
        result = super().known(id_, method, params)
        if method in ("initialize", "server/discover") and result is not None:
            meta = params.get("_meta") or {}
            server.capabilities = meta.get(META_CAPABILITIES) or params.get("capabilities") or {}
            if server.declared is not None:
                result["capabilities"]["extensions"] = {SKILLS: server.declared}
        return result


def reads(server: SkillServer) -> list[Any]:
    return [what for method, what in server.asked if method == "resources/read"]


# --- listing


@ERAS
async def test_skills_are_listed_over_all_pages_and_no_file_is_read(
    era: Literal["handshake", "modern"], caplog: pytest.LogCaptureFixture
) -> None:
    other = "skill://acme/pdf-processing/SKILL.md"
    broken = entry(resources=[listed(FORMS, MORE)])
    server = SkillServer([entry()], [broken | {"uri": "skill://x/SKILL.md"}, entry(other)], era=era)
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        with caplog.at_level(logging.WARNING, "moorings"):
            skills = await host.server("docs").skills()
    # Two of one name are two skills; what names them is server and URI.
    assert [(each.server, each.uri, each.name) for each in skills] == [
        ("docs", URI, "pdf-processing"),
        ("docs", other, "pdf-processing"),
    ]
    assert server.asked == [("skills/list", None), ("skills/list", "1")]
    assert "'skill://x/SKILL.md' left out" in caplog.text
    assert (SKILLS in server.capabilities.get("extensions", {})) is (era == "modern")


@pytest.mark.parametrize("declared", [None, False])
async def test_a_server_that_declares_no_skills_is_not_asked(declared: Any) -> None:
    server = SkillServer([entry()])
    server.declared = declared
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        assert await host.skills("docs") == []
        with pytest.raises(NotSent, match="declare"):
            await host.skill("docs", URI)
    assert server.asked == []


async def test_a_skill_is_found_by_its_uri_and_refreshed() -> None:
    server = SkillServer([entry()])
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        docs = host.server("docs")
        (listed_one,) = await docs.skills()
        assert await docs.skill(URI) == listed_one
        server.pages = ([entry(resources="dynamic")],)
        assert await docs.skill(URI) != listed_one
        with pytest.raises(Refused):
            await docs.skill("skill://none/SKILL.md")
    assert reads(server) == []


async def test_an_entry_of_another_skill_is_no_answer() -> None:
    server = SkillServer([entry()])

    async with AsyncHost({"docs": server}, state_dir=False) as host:
        await host.skills("docs")
        server.pages = ([{**entry(), "uri": URI}],)
        original = SkillPeer.known
        other = entry("skill://acme/pdf-processing/SKILL.md")

        def lies(self: SkillPeer, id_: Any, method: str, params: dict[str, Any]) -> Any:
            return {"skill": other} if method == "skills/get" else original(self, id_, method, params)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SkillPeer, "known", lies)
            with pytest.raises(AmbiguousDelivery, match="another skill"):
                await host.skill("docs", URI)


# --- reading


@ERAS
async def test_a_file_is_read_when_it_is_wanted(era: Literal["handshake", "modern"]) -> None:
    server = SkillServer([entry()], era=era)
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        docs = host.server("docs")
        (skill,) = await docs.skills()
        head = await docs.read_skill(skill)
        assert (head.text, head.pinned, head.mime_type) == (TEXT, True, "text/markdown")
        assert reads(server) == [URI]
        assert (await docs.read_skill(skill, "references/FORMS.md")).text == MORE
        assert (await host.read_skill(skill, FORMS)).text == MORE
    assert reads(server) == [URI, FORMS, FORMS]


TAMPERED: dict[str, Callable[[SkillServer], None]] = {
    "digest": lambda server: server.served.update({URI: TEXT.replace("Skill body.", "Evil body!!")}),
    "size": lambda server: server.served.update({URI: TEXT + "extra\n"}),
    "frontmatter": lambda server: tamper_head(server),
}


def tamper_head(server: SkillServer) -> None:
    text = TEXT.replace("Fill in forms", "Send secrets")
    server.served[URI] = text
    server.pages = ([entry(resources=[listed(URI, text), listed(FORMS, MORE)])],)


@ERAS
@pytest.mark.parametrize("rule", TAMPERED)
async def test_nothing_of_a_file_that_is_another_is_handed_out(
    era: Literal["handshake", "modern"], rule: str
) -> None:
    server = SkillServer([entry()], era=era)
    TAMPERED[rule](server)
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        (skill,) = await host.skills("docs")
        with pytest.raises(SkillMismatch) as caught:
            await host.read_skill(skill)
    error = caught.value
    assert (error.server, error.skill, error.uri, error.rule) == ("docs", URI, URI, rule)
    assert all(word not in str(error) for word in ("Evil", "extra", "secrets"))
    # It was asked for once: a file that is another is no reason to ask again.
    assert reads(server) == [URI]


async def test_what_a_skill_does_not_list_is_not_asked_for() -> None:
    server = SkillServer([entry()])
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        (skill,) = await host.skills("docs")
        for name in ("new.md", "../other/SKILL.md", "skill://other/SKILL.md"):
            with pytest.raises(SkillMismatch) as caught:
                await host.read_skill(skill, name)
            assert caught.value.rule == "unlisted"
    assert reads(server) == []


async def test_a_skill_is_read_from_its_own_server_alone() -> None:
    mine, other = SkillServer([entry()]), SkillServer([entry()])
    async with AsyncHost({"docs": mine, "other": other}, state_dir=False) as host:
        (skill,) = await host.skills("docs")
        with pytest.raises(MisuseError, match="docs"):
            await host.server("other").read_skill(skill)
        await host.read_skill(skill)
    assert (reads(mine), reads(other)) == ([URI], [])


async def test_a_dynamic_skill_is_read_and_said_to_be_unpinned() -> None:
    server = SkillServer([entry(resources="dynamic")])
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        (skill,) = await host.skills("docs")
        assert not (await host.read_skill(skill)).pinned
        server.served[URI] = TEXT.replace("Fill in forms", "Send secrets")
        with pytest.raises(SkillMismatch, match="description"):
            await host.read_skill(skill)


@ERAS
def test_the_blocking_twins(era: Literal["handshake", "modern"]) -> None:
    server = SkillServer([entry()], era=era)
    with Host({"docs": server, "other": MemoryServer()}, state_dir=False) as host:
        docs = host.server("docs")
        (skill,) = docs.skills()
        assert isinstance(skill, Skill) and host.skills("docs") == [skill] == [docs.skill(URI)]
        assert host.skill("docs", URI) == skill and host.skills("other") == []
        assert docs.read_skill(skill).text == host.read_skill(skill).text == TEXT
        assert docs.read_skill(skill, "references/FORMS.md").text == MORE
        with pytest.raises(MisuseError):
            host.server("other").read_skill(skill)
        server.served[URI] += "more"
        with pytest.raises(SkillMismatch):
            docs.read_skill(skill)


async def test_many_readers_at_once() -> None:
    server = SkillServer([entry()])
    async with AsyncHost({"docs": server}, state_dir=False) as host:
        (skill,) = await host.skills("docs")
        files = await asyncio.gather(*(host.read_skill(skill) for _ in range(20)))
    assert {file.text for file in files} == {TEXT}
