"""/docs: the OpenAPI document as a page for people. Made here, without scripts; its one style sheet ships with Duly.

Nothing is fetched from elsewhere: the Content-Security-Policy forbids it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

router = APIRouter(include_in_schema=False)

POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_REF = "#/components/schemas/"


@router.get("/docs")
async def read_docs(request: Request) -> HTMLResponse:
    """The page."""
    return HTMLResponse(page_of(request.app.openapi()), headers=_HEADERS)


@router.get("/docs/style.css")
async def read_style() -> Response:
    """Its style sheet."""
    return Response(_style(), media_type="text/css", headers=_HEADERS)


def page_of(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML. Everything in it is escaped."""
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{title}: API</title><link rel="stylesheet" href="/docs/style.css"></head><body>',
            f"<header><h1>{title}</h1><p>{escape(info.get('summary', ''))}. ",
            '<a href="/openapi.json">OpenAPI document</a></p></header>',
            f"<nav>{''.join(_contents(document))}</nav>",
            f"<main>{''.join(_operations(document))}{''.join(_schemas(document))}</main></body></html>",
        ]
    )


@lru_cache(maxsize=1)
def _style() -> bytes:
    return files("duly.api").joinpath("assets", "docs.css").read_bytes()


def _each_operation(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _contents(document: Mapping[str, Any]) -> Iterator[str]:
    tag = None
    for method, path, operation in _each_operation(document):
        first = (operation.get("tags") or ["other"])[0]
        if first != tag:
            tag = first
            yield f"<h2>{escape(first)}</h2>"
        yield f'<a href="#{escape(operation["operationId"])}"><b>{method}</b> <code>{escape(path)}</code></a>'


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for method, path, operation in _each_operation(document):
        yield f'<section id="{escape(operation["operationId"])}"><h2><b>{method}</b> <code>{escape(path)}</code></h2>'
        yield f"<p><strong>{escape(operation.get('summary', ''))}.</strong> "
        yield f"{escape(operation.get('description', ''))}</p>"
        if parameters := operation.get("parameters"):
            yield "<h3>Parameters</h3><table>"
            for one in parameters:
                need = "required" if one.get("required") else one["in"]
                yield _row(one["name"], _type(one.get("schema", {})), need, one.get("description", ""))
            yield "</table>"
        if body := operation.get("requestBody"):
            yield f"<h3>Body</h3><p>{_content(body)}</p>"
        yield "<h3>Answers</h3><table>"
        for status, answer in sorted(operation["responses"].items()):
            yield _row(status, _content(answer), "", answer.get("description", ""))
        yield "</table></section>"


def _schemas(document: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f'<section id="schema-{escape(name)}"><h2>{escape(name)}</h2>'
        yield f"<p>{escape(schema.get('description', ''))}</p>"
        required = schema.get("required", ())
        yield "<table>"
        for member, one in schema.get("properties", {}).items():
            default = f"default {one['default']!r}" if "default" in one and one["default"] is not None else ""
            yield _row(member, _type(one), "required" if member in required else default, one.get("description", ""))
        yield "</table></section>"


def _row(name: str, shape: str, need: str, text: str) -> str:
    return (
        f"<tr><th><code>{escape(name)}</code></th><td>{shape}</td><td>{escape(need)}</td><td>{escape(text)}</td></tr>"
    )


def _content(described: Mapping[str, Any]) -> str:
    shapes = [_type(content.get("schema", {})) for content in described.get("content", {}).values()]
    return ", ".join(dict.fromkeys(shape for shape in shapes if shape))


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to the named ones."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).removeprefix(_REF))
        return f'<a href="#schema-{name}">{name}</a>'
    for joint in ("anyOf", "oneOf", "allOf"):
        if joint in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[joint]))
    if "enum" in schema:
        return " | ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {})) or 'anything'}"
    return escape(" ".join(str(schema[key]) for key in ("type", "format") if key in schema))
