"""The errors of this package: a target that the operator did not allow, a name that did not resolve, a proxy that
did not open a way."""

from __future__ import annotations

import errno

from duly.model.errors import DulyError


class TargetNotAllowedError(DulyError):
    """The operator's policy refuses this target. `rule` names what refused it, `setting` what an operator would change.

    The message is safe for tenants: it holds nothing that the tenant did not write, above all no resolved address.
    """

    def __init__(self, message: str, *, rule: str, setting: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.setting = setting


class DnsError(DulyError):
    """A name that could not be turned into addresses. Always worth another try."""


class ProxyRefusedError(OSError):
    """The egress proxy did not open a way to the target, or is not there. `status`: its answer, None if it gave none.

    An OSError, so that aiohttp takes it for a failed connection and goes on to the target's next address.
    """

    def __init__(self, why: str, status: int | None = None) -> None:
        super().__init__(errno.EHOSTUNREACH, why)
        self.status = status


class AddressRefusedError(OSError):
    """Raised at the socket, in place of a connect(2) to an address that is not allowed.

    An OSError, because aiohappyeyeballs treats nothing else as a failed candidate; always the same text, because it
    keeps the type only when all candidates failed with the same words.
    """

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "target address not allowed")
