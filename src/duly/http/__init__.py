"""One stored request in, one HTTP exchange, one outcome out.

May import: duly.model, the standard library, aiohttp, aiodns, httptools, idna, yarl. Touches no table.
Must hold: an outbound request never reaches an address that its operator did not allow.

Reading order: `url` and `hostname` (what a target is), `addresses`, `ports` and `policy` (where it may be), `headers`
and `request` (what is sent), `resolver`, `guard` and `proxy` (which address is dialled, and how), `delivery` (the
exchange), `lost`, `classification` and `failures` (what came of it), `breaker` (what it says of the target).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from duly.http.addresses import AddressClass, classify
from duly.http.breaker import BreakerSettings
from duly.http.classification import Verdict, classify_response
from duly.http.errors import AddressRefusedError, DnsError, TargetNotAllowedError
from duly.http.headers import METHODS, check_headers, check_method
from duly.http.policy import EgressPolicy
from duly.http.proxy import EgressProxy
from duly.http.request import HOPS_HEADER, MAX_HOPS, StoredRequest, new_request
from duly.http.resolver import Resolver, SystemResolver, resolve
from duly.http.retry_after import retry_after
from duly.http.signature import decode_secret, encode_secret, masked, sign
from duly.http.url import Target, parse_target

if TYPE_CHECKING:
    from duly.http.delivery import USER_AGENT, Deliverer

__all__ = [
    "HOPS_HEADER",
    "MAX_HOPS",
    "METHODS",
    "USER_AGENT",
    "AddressClass",
    "AddressRefusedError",
    "BreakerSettings",
    "Deliverer",
    "DnsError",
    "EgressPolicy",
    "EgressProxy",
    "Resolver",
    "StoredRequest",
    "SystemResolver",
    "Target",
    "TargetNotAllowedError",
    "Verdict",
    "check_headers",
    "check_method",
    "classify",
    "classify_response",
    "decode_secret",
    "encode_secret",
    "masked",
    "new_request",
    "parse_target",
    "resolve",
    "retry_after",
    "sign",
]


def __getattr__(name: str) -> Any:
    """What delivers, imported when it is asked for: whoever only looks at URLs and policies needs no HTTP client."""
    if name not in ("USER_AGENT", "Deliverer"):
        raise AttributeError(f"module 'duly.http' has no attribute {name!r}")
    return getattr(import_module("duly.http.delivery"), name)
