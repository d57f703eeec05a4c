"""Reads ssrf-cases.tsv and gives a verdict on each kind of row; no network."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from duly.http import EgressPolicy, StoredRequest, check_headers, check_method, parse_target, resolve
from duly.http.errors import AddressRefusedError, DnsError
from duly.http.guard import check_dial
from duly.model.errors import DulyError

ROWS_PATH = Path(__file__).parent.with_name("ssrf-cases.tsv")
VARIANTS_PATH = ROWS_PATH.with_name("ssrf-variants.tsv")  # more of each class, in the same form
REFUSED = (DulyError, AddressRefusedError)
# Rows about behaviour on the wire: integration tests, not verdicts on text.
BEHAVIOUR = ("redirect", "response", "env", "tls", "error", "self")


@dataclass(frozen=True, slots=True)
class Row:
    """One case; `prefix` is "" for plain URLs."""

    prefix: str
    text: str
    is_allowed: bool
    why: str


def read_rows(path: Path = ROWS_PATH) -> list[Row]:
    """Every row of the file, unescaped."""
    rows = []
    for line in path.read_text("ascii").split("\n")[1:]:
        if line:
            raw, expected, why = line.split("\t")
            rows.append(_row(raw, expected == "allow", why))
    return rows


def _row(raw: str, is_allowed: bool, why: str) -> Row:
    text = raw.encode("ascii").decode("unicode_escape")
    if text.startswith("gen:"):
        text = str(eval(text.removeprefix("gen:"), {"__builtins__": {}}))
    known = r"(dns|redirect|header|method|env|dial|allowlist|denylist|self|tls|response|error):"
    found = re.match(known, text)
    if found is None:
        return Row("", text, is_allowed, why)
    return Row(found[1], text[found.end() :], is_allowed, why)


class ScriptedResolver:
    """Answers from a list, one entry per look-up of a host; what is left last repeats. Counts."""

    def __init__(self, *answers: Sequence[str] | None) -> None:
        self._answers = list(answers)
        self.lookups = 0

    async def lookup(self, host: str, family: socket.AddressFamily) -> Sequence[str]:
        if family == socket.AF_INET6:  # asked first; both families of one attempt see the same answer
            self.lookups += 1
        at = min(max(self.lookups - 1, 0), len(self._answers) - 1)
        answer = self._answers[at]
        if answer is None:
            raise DnsError("scripted")
        wanted = 6 if family == socket.AF_INET6 else 4
        return [text for text in answer if ip_address(text).version == wanted]

    async def close(self) -> None:
        pass


async def is_allowed(row: Row, policy: EgressPolicy) -> bool:
    """The verdict of the code on a row."""
    try:
        match row.prefix:
            case "":
                policy.check_target(parse_target(row.text))
            case "header":
                name, _, value = row.text.partition(":")
                check_headers([(name, value.removeprefix(" "))])
            case "method":
                check_method(row.text)
            case "dial":
                _dial(row.text, policy)
            case "allowlist" | "denylist":
                await _listed(row)
            case "dns":
                await _dns(row.text, policy)
            case _:
                raise LookupError(row.prefix)
    except REFUSED:
        return False
    return True


def _dial(text: str, policy: EgressPolicy) -> None:
    if text.startswith("uds:"):
        check_dial(policy, "any", socket.AF_UNIX, text.removeprefix("uds:"))
        return
    host, _, port = text.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    rest = (0, 0) if family == socket.AF_INET6 else ()
    check_dial(policy, "any", family, (host.strip("[]"), int(port), *rest))


async def _listed(row: Row) -> None:
    entry, _, url = row.text.partition(" ")
    allow, deny = ([entry], []) if row.prefix == "allowlist" else ([], [entry])
    policy = EgressPolicy.parse(allow, deny)
    target = StoredRequest.from_payload({"url": url, "method": "GET"}, None).target
    policy.check_target(target)
    await resolve(ScriptedResolver(["10.0.0.9"]), policy, target)  # the names of these rows are internal ones


async def _dns(text: str, policy: EgressPolicy) -> None:
    url, _, rest = text.partition(" ")
    target = parse_target(url)
    policy.check_target(target)
    answers = [_addresses(part) for part in re.findall(r"\[(.*?)\]", rest)] or [_addresses(rest)]
    resolver = ScriptedResolver(*answers)
    for _ in answers:
        await resolve(resolver, policy, target, limit_s=1.0)


def _addresses(text: str) -> list[str] | None:
    if re.search(r"SERVFAIL|TIMEOUT|SEARCH=|CNAME=localhost", text):
        return None  # an absolute query has no search list, and localhost is not asked of name servers
    found = re.findall(r"(?:\bA|AAAA|HOSTS)=([0-9a-fA-F:.,]+)", text)
    return [address for part in found for address in part.split(",")]
