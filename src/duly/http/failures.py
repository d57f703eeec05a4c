"""Foreign exceptions of one delivery, mapped once to a class and a sentence that a tenant may read.

No address, no path, no library text gets into the sentence; a refused address reads like every other refused address.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

from duly.http.errors import AddressRefusedError, DnsError, ProxyRefusedError, TargetNotAllowedError
from duly.http.head_limit import BadHeadError
from duly.http.lost import LostConnectionError

_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Failure:
    """`result` as in Report.result; `error` one sentence; `status` when the target had already given one."""

    result: str
    error: str
    status: int | None = None


NOT_ALLOWED = Failure("target_not_allowed", "target address not allowed")
TIMED_OUT = {
    "dns": Failure("dns_error", "looking up the target's name took too long"),
    "connect": Failure("connect_timeout", "connecting to the target took too long"),
    "tls": Failure("connect_timeout", "the TLS handshake with the target took too long"),
    "request": Failure("timeout", "the target did not answer in time"),
}


def failure(error: BaseException, *, step: str, is_tls: bool) -> Failure:
    """What went wrong, from the first exception of the chain that says so. `step` is a key of TIMED_OUT."""
    chain = list(_chain(error))
    for cause in chain:
        found = _plain(cause, step)
        if found is not None:
            return found
    if isinstance(error, aiohttp.ClientSSLError):
        return Failure("tls_error", "the TLS handshake with the target failed")
    if isinstance(error, aiohttp.ClientConnectorError):
        return _unconnected(error.os_error, is_tls=is_tls)
    if isinstance(error, LostConnectionError | ConnectionError):
        return Failure("protocol_error", "the connection was closed before an answer came")
    if isinstance(error, aiohttp.ClientError | ValueError):
        return Failure("protocol_error", "the target's answer could not be read as HTTP")
    return Failure("error", f"the delivery failed ({type(error).__name__})")


def _plain(error: BaseException, step: str) -> Failure | None:
    match error:
        case TargetNotAllowedError():
            return Failure("target_not_allowed", str(error))
        case AddressRefusedError():
            return NOT_ALLOWED
        case ProxyRefusedError():  # why is for the operator's log: a tenant learns nothing of the network inside
            return Failure("connect_refused", "the target could not be reached through the egress proxy")
        case DnsError():
            return Failure("dns_error", str(error))
        case aiohttp.ClientSSLError():  # also an SSLError by inheritance; the real one is its cause
            return None
        case ssl.SSLCertVerificationError():
            return Failure("tls_error", f"the target's certificate is not valid: {error.verify_message}")
        case ssl.SSLError():
            return Failure("tls_error", "the TLS handshake with the target failed")
        case aiohttp.ConnectionTimeoutError():
            return TIMED_OUT["tls" if step == "tls" else "connect"]
        case aiohttp.SocketTimeoutError():
            return TIMED_OUT["request"]
        case BadHeadError(status=status, too_big=True):
            return Failure("protocol_error", "the target's answer has too many or too long headers", status)
        case BadHeadError(status=status):
            return Failure("protocol_error", "the target's answer could not be read as HTTP", status)
    return None


def _unconnected(error: OSError, *, is_tls: bool) -> Failure:
    if error.errno == errno.ECONNREFUSED:
        return Failure("connect_refused", "the target refused the connection")
    if is_tls and isinstance(error, ConnectionError):
        return Failure("tls_error", "the TLS handshake with the target failed")
    if error.errno == errno.ETIMEDOUT:
        return TIMED_OUT["connect"]
    if error.errno in _UNREACHABLE:
        return Failure("connect_refused", "the target could not be reached")
    return Failure("connect_refused", "the connection to the target failed")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [getattr(current, name, None) for name in ("os_error", "certificate_error", "__cause__")]
