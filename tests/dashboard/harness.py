"""A browser without JavaScript: cookies, pages, forms with the token that the page carries."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx

COOKIE = "duly_session"


class Visitor:
    """Somebody who looks at the dashboard of one address."""

    def __init__(self, address: str) -> None:
        self.http = httpx.AsyncClient(base_url=address, timeout=30)
        self.csrf = ""

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.http.aclose()

    async def sign_in(self, key: str, **options: Any) -> httpx.Response:
        return await self.http.post("/dashboard/sign-in", data={"key": key}, **options)

    async def get(self, path: str = "/", status: int = 200, **options: Any) -> str:
        """A page's markup; remembers the token for forms."""
        answer = await self.http.get(f"/dashboard{path}", **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        if found := re.search(r'name="csrf" value="([0-9a-f]+)"', answer.text):
            self.csrf = found[1]
        return answer.text

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form as the page would."""
        if not self.csrf:
            await self.get()
        return await self.http.post(f"/dashboard{path}", data={"csrf": self.csrf, **fields})

    async def said(self, answer: httpx.Response) -> str:
        """What the page to which an action leads says."""
        assert answer.status_code == 303, (answer.status_code, answer.text)
        page = await self.get(answer.headers["location"].removeprefix("/dashboard"))
        found = re.search(r'<p class="said" role="status">(.*?)</p>', page)
        assert found, page
        return unescape(found[1])

    @property
    def cookie(self) -> str | None:
        return self.http.cookies.get(COOKIE)


def text_of(page: str) -> str:
    """The words of a page, as a reader sees them."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())
