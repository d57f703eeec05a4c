"""One claimed job in, one HTTP exchange, one outcome out."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from duly import __version__
from duly.http.addresses import Address
from duly.http.classification import Verdict, classify_response
from duly.http.connections import Connections
from duly.http.exchange import READ_LIMIT_BYTES, Exchange, PeerNotingResponse, tracing
from duly.http.failures import TIMED_OUT, Failure, failure
from duly.http.policy import EgressPolicy
from duly.http.proxy import EgressProxy, Tunnels
from duly.http.request import HOPS_HEADER, StoredRequest
from duly.http.resolver import Resolver, SystemResolver, resolve
from duly.http.signature import sign
from duly.http.tls import tls_context
from duly.http.url import DEFAULT_PORTS, Target
from duly.model.errors import InvalidInputError
from duly.model.jobs import ClaimedJob
from duly.model.outcomes import Bury, Outcome, Report, Retry, Success
from duly.model.states import DeadReason

USER_AGENT = f"duly/{__version__}"
NOT_ALLOWED_ATTEMPTS = 3

_LARGE_BODY_BYTES = 1 << 20  # above this aiohttp warns about bytes and wants a stream


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Deliverer:
    """Delivers HTTP jobs under an egress policy. An async context manager; one per process is enough.

    `resolver` None asks the machine's name servers; `ca_file` None trusts the machine's store; `proxy` None dials the
    target itself, another one is the only way out; `clock` gives the time that is signed and that Retry-After dates are
    compared with.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        resolver: Resolver | None = None,
        ca_file: str | Path | None = None,
        proxy: EgressProxy | None = None,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._policy = policy
        self._given_resolver = resolver
        self._tls = tls_context(ca_file)
        self._proxy = proxy
        self._clock = clock

    async def __aenter__(self) -> Self:
        self._resolver = self._given_resolver or SystemResolver()
        self._connections = Connections(
            self._policy,
            self._tls,
            response_class=PeerNotingResponse,
            trace=tracing(),
            tunnels=None if self._proxy is None else Tunnels(self._proxy, self._resolver),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._connections.close()
        if self._given_resolver is None:
            await self._resolver.close()

    async def deliver(self, job: ClaimedJob, secrets: Sequence[bytes] = (), *, hidden: Sequence[bytes] = ()) -> Outcome:
        """Send the job's request once and say what its answer means. Raises only CancelledError.

        `secrets` sign; neither they nor what is `hidden` is repeated in the report, should the target send it back.
        """
        exchange = Exchange(secrets=tuple(secrets), hidden=tuple(hidden))
        try:
            request = StoredRequest.from_payload(json.loads(job.payload_json), job.body)
        except (InvalidInputError, ValueError) as error:
            why = str(error) if isinstance(error, InvalidInputError) else "it is not JSON"
            return Bury(
                DeadReason.PERMANENT, self._report(exchange, "error", f"the stored request is not valid: {why}")
            )
        failed = await self._attempt(job, request, exchange)
        if exchange.status is not None:
            return self._answered(exchange, job)
        return self._failed(exchange, job, failed or Failure("error", "the delivery ended without an answer"))

    async def _attempt(self, job: ClaimedJob, request: StoredRequest, exchange: Exchange) -> Failure | None:
        # The deadline stands outside aiohttp, which rounds its own up to whole seconds and does not count the look-up.
        limit = asyncio.timeout(job.timeout.total_seconds())
        try:
            async with limit:
                addresses = await self._vetted(request.target, exchange)
                await self._exchange(job, request, addresses, exchange)
        except TimeoutError as error:
            if limit.expired():
                return TIMED_OUT[exchange.step]
            return failure(error, is_tls=request.target.scheme == "https")
        except Exception as error:  # whatever a hostile answer makes a library raise, the attempt has an outcome
            failed = failure(error, is_tls=request.target.scheme == "https")
            if exchange.status is None:
                exchange.status = failed.status
            return failed
        return None

    async def _vetted(self, target: Target, exchange: Exchange) -> tuple[Address, ...]:
        self._policy.check_target(target)
        addresses = await resolve(self._resolver, self._policy, target)
        exchange.mark("dns", exchange.started)
        exchange.step = "connect"
        return addresses

    async def _exchange(
        self, job: ClaimedJob, request: StoredRequest, addresses: Sequence[Address], exchange: Exchange
    ) -> None:
        async with self._connections.session(job.account_id, request.target, addresses) as session:
            sent = time.monotonic()
            response = await session.request(
                request.method,
                wire_url(request.target),
                headers=self._headers(job, request, exchange.secrets),
                data=_data(request.body),
                allow_redirects=False,
                trace_request_ctx=exchange,
            )
            try:
                exchange.answered(response)
                exchange.remote_address = response.peer if isinstance(response, PeerNotingResponse) else None
                exchange.mark("first_byte", sent)
                if response.status != 101:
                    await _read(response, exchange)
            finally:
                response.close()  # nothing happens to a connection that was read to its end and is back in the pool

    def _headers(self, job: ClaimedJob, request: StoredRequest, secrets: Sequence[bytes]) -> list[tuple[str, str]]:
        body = request.body or b""
        headers = _one_spelling(request.headers)
        if request.header("User-Agent") is None:
            headers.append(("User-Agent", USER_AGENT))
        if request.header("Idempotency-Key") is None:
            headers.append(("Idempotency-Key", str(job.id)))
        headers += [
            ("Accept-Encoding", "identity"),
            ("Duly-Job-Id", str(job.id)),
            ("Duly-Attempt", str(job.attempt)),
            ("Duly-Max-Attempts", str(job.final_attempt)),
            ("Duly-Trigger", str(job.trigger)),
            ("Duly-Scheduled-At", job.run_at.astimezone(UTC).isoformat().replace("+00:00", "Z")),
            (HOPS_HEADER, str(request.hops + 1)),
            *sign(secrets, str(job.id), int(self._clock().timestamp()), body),
        ]
        if request.body is not None or request.method in ("POST", "PUT", "PATCH", "DELETE"):
            headers.append(("Content-Length", str(len(body))))
        return headers

    def _answered(self, exchange: Exchange, job: ClaimedJob) -> Outcome:
        assert exchange.status is not None
        verdict = classify_response(exchange.status, exchange.headers, job.retry.on, self._clock())
        return _outcome(verdict, self._report(exchange, verdict.result, verdict.error))

    def _failed(self, exchange: Exchange, job: ClaimedJob, failed: Failure) -> Outcome:
        report = self._report(exchange, failed.result, failed.error)
        attempts_of_budget = job.max_attempts - (job.final_attempt - job.attempt)
        checked_enough = attempts_of_budget >= NOT_ALLOWED_ATTEMPTS or job.attempt >= job.final_attempt
        if failed.result == "target_not_allowed" and checked_enough:
            return Bury(DeadReason.TARGET_NOT_ALLOWED, report)
        return Retry(report)

    def _report(self, exchange: Exchange, result: str, error: str | None) -> Report:
        return exchange.report(result, error, self._clock())


def wire_url(target: Target) -> URL:
    """The URL for aiohttp. Path and query go in as one encoded path, or yarl would drop an empty query."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    port = None if target.port == DEFAULT_PORTS[target.scheme] else target.port
    return URL.build(scheme=target.scheme, host=host, port=port, path=target.path_and_query, encoded=True)


async def _read(response: aiohttp.ClientResponse, exchange: Exchange) -> None:
    """Read at most the limit. A body that is cut, badly framed or too slow leaves the status standing."""
    kept = bytearray()
    try:
        async for chunk in response.content.iter_any():
            kept += chunk
            if len(kept) > READ_LIMIT_BYTES:
                exchange.is_cut = True
                break
    except (aiohttp.ClientError, OSError, ValueError):
        exchange.is_cut = True
    except asyncio.CancelledError:
        exchange.is_cut = True
        raise
    finally:
        exchange.body = bytes(kept[:READ_LIMIT_BYTES])


def _one_spelling(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """aiohttp drops "X-A: 1" when "x-a: 2" follows: a repeated name takes the spelling of its first appearance."""
    spelling: dict[str, str] = {}
    return [(spelling.setdefault(name.lower(), name), value) for name, value in headers]


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    if body is not None and len(body) >= _LARGE_BODY_BYTES:
        return io.BytesIO(body)
    return body


def _outcome(verdict: Verdict, report: Report) -> Outcome:
    match verdict.kind:
        case "success":
            return Success(result=None, report=report)
        case "retry":
            return Retry(report, at_least=verdict.at_least)
        case "bury":
            return Bury(verdict.reason or DeadReason.PERMANENT, report)
