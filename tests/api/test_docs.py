"""The OpenAPI document is the committed one, and the page that shows it fetches nothing from elsewhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import httpx

from duly.api.app import routed_app
from duly.api.docs import page_of
from duly.api.openapi import document_text

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def test_the_committed_document_is_what_the_routes_say() -> None:
    """A difference is a change of the contract: look at it, and write it down with `make openapi`."""
    assert json.loads(COMMITTED.read_text()) == json.loads(document_text()), "run `make openapi`, read the difference"
    assert COMMITTED.read_text() == document_text(), "run `make openapi`"


async def test_the_served_document_is_the_committed_one(client: httpx.AsyncClient) -> None:
    """At /openapi.json, without a key: OpenAPI 3.1."""
    answer = await client.get("/openapi.json")
    assert answer.json() == json.loads(COMMITTED.read_text())
    assert answer.json()["openapi"].startswith("3.1")


class Links(HTMLParser):
    """What a page refers to, what it runs, and what its links can lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src") and value:
                self.references.append(value)
            if name == "id" and value:
                self.ids.add(value)


async def test_the_page_needs_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    """No script, no inline style, no other host; what it refers to is there; and the policy forbids the rest."""
    answer = await client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self';")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = Links()
    page.feed(answer.text)
    assert not page.tags & {"script", "style", "iframe", "img", "object", "base", "form"}
    assert not {name for name in page.attributes if name.startswith("on") or name == "style"}
    for reference in page.references:
        assert reference.startswith(("/docs/", "/openapi.json", "#")), reference
        if reference.startswith("#"):
            assert reference[1:] in page.ids, reference
        else:
            found = await client.get(reference)
            assert found.status_code == 200
            assert not re.search(r"url\(|@import|https?:", found.text) or reference == "/openapi.json"


async def test_the_page_shows_every_call_and_schema(client: httpx.AsyncClient) -> None:
    """Nothing of the document is left out."""
    document = routed_app().openapi()
    page = Links()
    page.feed((await client.get("/docs")).text)
    operations = {one["operationId"] for methods in document["paths"].values() for one in methods.values()}
    assert operations | {f"schema-{name}" for name in document["components"]["schemas"]} == page.ids


def test_what_a_document_says_is_text() -> None:
    """Markup in a description, a name or a default is shown, not run."""
    bad = "<script>alert(1)</script>\"'&"
    document = {
        "info": {"title": bad, "version": bad, "summary": bad},
        "paths": {
            f"/{bad}": {
                "get": {
                    "operationId": bad,
                    "tags": [bad],
                    "summary": bad,
                    "description": bad,
                    "parameters": [{"name": bad, "in": bad, "schema": {"enum": [bad]}, "description": bad}],
                    "requestBody": {"content": {bad: {"schema": {"$ref": f"#/components/schemas/{bad}"}}}},
                    "responses": {bad: {"description": bad, "content": {bad: {"schema": {"const": bad}}}}},
                }
            }
        },
        "components": {
            "schemas": {
                bad: {
                    "description": bad,
                    "properties": {
                        bad: {"type": bad, "format": bad, "default": bad, "description": bad},
                        "list": {"type": "array", "items": {"anyOf": [{"type": bad}, {}]}},
                    },
                }
            }
        },
    }
    page = Links()
    page.feed(page_of(document))
    assert "script" not in page.tags
    assert "<script>" not in page_of(document)
