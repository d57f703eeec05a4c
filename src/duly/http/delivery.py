"""One claimed job in, one HTTP exchange, one outcome out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from duly import __version__
from duly.http.addresses import Address
from duly.http.classification import Verdict, classify_response
from duly.http.connections import Connections, once
from duly.http.exchange import READ_LIMIT_BYTES, Exchange, PeerNotingResponse, current_exchange
from duly.http.failures import TIMED_OUT, Failure, failure
from duly.http.lost import UnansweredError
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
# A connection that the target was just closing is lost within a round trip. Later than this, the target had the time
# to work on the request.
RESEND_WITHIN_S = 1.0

_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})  # RFC 9110, section 9.2.2

_PIECE_BYTES = 1 << 16
_LARGE_BODY_BYTES = 1 << 20  # above this aiohttp warns about bytes and wants a stream


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Deliverer:
    """Delivers HTTP jobs under an egress policy. An async context manager; one per process is enough.

    `resolver` None asks the machine's name servers; `ca_file` None trusts the machine's store; `proxy` None dials the
    target itself, another one is the only way out; `clock` gives the time that is signed and that Retry-After dates are
    compared with; `trace` gives headers that tell the target which trace the attempt belongs to, and yield to the
    job's own.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        resolver: Resolver | None = None,
        ca_file: str | Path | None = None,
        proxy: EgressProxy | None = None,
        clock: Callable[[], datetime] = _utc_now,
        trace: Callable[[], Iterable[tuple[str, str]]] | None = None,
    ) -> None:
        self._policy = policy
        self._given_resolver = resolver
        self._tls = tls_context(ca_file)
        self._proxy = proxy
        self._clock = clock
        self._trace = trace

    async def __aenter__(self) -> Self:
        self._resolver = self._given_resolver or SystemResolver()
        self._connections = Connections(
            self._policy,
            self._tls,
            response_class=PeerNotingResponse,
            tunnels=None if self._proxy is None else Tunnels(self._proxy, self._resolver),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._connections.close()
        if self._given_resolver is None:
            await self._resolver.close()

    async def deliver(
        self, job: ClaimedJob, secrets: Sequence[bytes] = (), *, payload: Any = None, hidden: Sequence[bytes] = ()
    ) -> Outcome:
        """Send the job's request and say what its answer means. Raises only CancelledError.

        It is sent once, and once more if it was written into a kept connection that the target was just closing.
        `payload`: the stored request, read and in the clear; None reads the job's own. `secrets` sign; neither they nor
        what is `hidden` is repeated in the report, should the target send it back.
        """
        exchange = Exchange(secrets=tuple(secrets), hidden=tuple(hidden))
        try:
            stored = json.loads(job.payload_json) if payload is None else payload
            request = StoredRequest.from_payload(stored, job.body)
        except (InvalidInputError, ValueError) as error:
            why = str(error) if isinstance(error, InvalidInputError) else "it is not JSON"
            return Bury(
                DeadReason.PERMANENT, self._report(exchange, "error", f"the stored request is not valid: {why}")
            )
        exchange.is_tls = request.target.scheme == "https"
        exchange.is_last = job.attempt >= job.final_attempt
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
                headers = self._headers(job, request, exchange.secrets)
                await self._exchange(job.account_id, request, headers, addresses, exchange)
        except TimeoutError as error:
            if limit.expired():
                return TIMED_OUT[exchange.step]
            return failure(error, step=exchange.step, is_tls=exchange.is_tls)
        except Exception as error:  # whatever a hostile answer makes a library raise, the attempt has an outcome
            failed = failure(error, step=exchange.step, is_tls=exchange.is_tls)
            if exchange.status is None:
                exchange.status = failed.status
            return failed
        return None

    async def _vetted(self, target: Target, exchange: Exchange) -> tuple[Address, ...]:
        self._policy.check_target(target)
        addresses = await resolve(self._resolver, self._policy, target)
        exchange.enter("connect", ended="dns")
        return addresses

    async def _exchange(
        self,
        account_id: int,
        request: StoredRequest,
        headers: Sequence[tuple[str, str]],
        addresses: Sequence[Address],
        exchange: Exchange,
    ) -> None:
        """One request in, with Host and exactly these headers, to vetted addresses; one answer out, into `exchange`, as
        far as it came. All that is to know of the HTTP client in use is here and in `failures` (docs/adr/0002).
        """
        try:
            async with self._connections.session(account_id, request.target, addresses) as session:
                await _send(session, request, headers, exchange)
        except UnansweredError:
            if not may_resend(request.method, exchange):
                raise
            exchange.is_resent = True
            async with self._connections.fresh_session(request.target, addresses) as session:
                await _send(session, request, headers, exchange)

    def _headers(self, job: ClaimedJob, request: StoredRequest, secrets: Sequence[bytes]) -> list[tuple[str, str]]:
        body, job_id = request.body or b"", str(job.id)
        headers = list(request.headers)
        if request.header("User-Agent") is None:
            headers.append(("User-Agent", USER_AGENT))
        if request.header("Idempotency-Key") is None:
            headers.append(("Idempotency-Key", job_id))
        if self._trace is not None and request.header("traceparent") is None:
            headers += [(name, value) for name, value in self._trace() if request.header(name) is None]
        headers += [
            ("Accept-Encoding", "identity"),
            ("Duly-Job-Id", job_id),
            ("Duly-Attempt", str(job.attempt)),
            ("Duly-Max-Attempts", str(job.final_attempt)),
            ("Duly-Trigger", job.trigger.value),
            ("Duly-Scheduled-At", job.run_at.astimezone(UTC).isoformat().replace("+00:00", "Z")),
            (HOPS_HEADER, str(request.hops + 1)),
            *sign(secrets, job_id, int(self._clock().timestamp()), body),
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


def may_resend(method: str, exchange: Exchange) -> bool:
    """Whether a request that was lost without a byte of answer may go out again at once, on a new connection.

    Only if it was written into a kept connection, lost at once, and not sent again yet (RFC 9112, section 9.3.1).
    That does not prove that the target did nothing. An idempotent method needs no proof; the others are sent again
    only where the job would be repeated anyhow, under the same id: at its last attempt they are not.
    """
    is_stale = exchange.is_reused and not exchange.is_resent and time.monotonic() - exchange.since < RESEND_WITHIN_S
    return is_stale and (method in _IDEMPOTENT or not exchange.is_last)


def wire_url(target: Target) -> URL:
    """The URL for aiohttp. Path and query go in as one encoded path, or yarl would drop an empty query."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    port = None if target.port == DEFAULT_PORTS[target.scheme] else target.port
    return URL.build(scheme=target.scheme, host=host, port=port, path=target.path_and_query, encoded=True)


async def _send(
    session: aiohttp.ClientSession, request: StoredRequest, headers: Sequence[tuple[str, str]], exchange: Exchange
) -> None:
    current_exchange.set(exchange)
    exchange.enter("connect")
    data = _data(request.body)
    response = await session.request(
        request.method,
        wire_url(request.target),
        middlewares=(once(headers),),
        data=data,
        headers={"Content-Length": str(len(request.body or b""))} if isinstance(data, _Pieces) else None,  # not chunked
        allow_redirects=False,
    )
    try:
        exchange.answered(response)
        exchange.remote_address = response.peer if isinstance(response, PeerNotingResponse) else None
        if response.status != 101:
            await _read(response, exchange)
    finally:
        response.close()  # nothing happens to a connection that was read to its end and is back in the pool


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


class _Pieces:
    """A large body, a piece at a time; a BytesIO would be copied whole, for its size."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece = self._body[self._at : self._at + _PIECE_BYTES]
        if not piece:
            raise StopAsyncIteration
        self._at += len(piece)
        return piece


def _data(body: bytes | None) -> bytes | _Pieces | None:
    return _Pieces(body) if body is not None and len(body) >= _LARGE_BODY_BYTES else body


def _outcome(verdict: Verdict, report: Report) -> Outcome:
    match verdict.kind:
        case "success":
            return Success(result=None, report=report)
        case "retry":
            return Retry(report, at_least=verdict.at_least)
        case "bury":
            return Bury(verdict.reason or DeadReason.PERMANENT, report)
