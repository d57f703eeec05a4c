"""What an operator can set about the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from duly.service import Limits


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`body_limit_bytes`: the longest body of a job. `horizon`: how far ahead a job may be due.

    `base_url` ("https://jobs.example.com"): goes in front of links; empty: links are paths. `retry_after_s`: what a 503
    tells clients to wait. `read_timeout_s`: how long a request's body may take to arrive. `batch_limit`,
    `batch_limit_bytes`: the most jobs, and the longest request, of a batch.
    """

    body_limit_bytes: int = 256 * 1024
    metadata_limit_bytes: int = 4 * 1024
    horizon: timedelta = timedelta(days=366)
    base_url: str = ""
    retry_after_s: int = 2
    read_timeout_s: float = 30.0
    ready_timeout_s: float = 3.0
    batch_limit_bytes: int = 5 * 1024 * 1024
    batch_limit: int = 1000

    @property
    def limits(self) -> Limits:
        """The part that the rules for jobs need."""
        return Limits(self.body_limit_bytes, self.metadata_limit_bytes, self.horizon)

    @property
    def request_limit_bytes(self) -> int:
        """The longest request: a body in its widest writing (three octets for one, escaped) and all other members."""
        return 3 * self.body_limit_bytes + 128 * 1024
