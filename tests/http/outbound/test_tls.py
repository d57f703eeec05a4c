"""TLS: always verified, against the URL's host, with a trust store that the environment cannot move."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from duly.http import EgressPolicy
from duly.http.tls import tls_context
from duly.model import Retry, Success
from duly.model.errors import InvalidInputError

from .servers import OK, closed_port, deliver, make_job, raw_server, report_of
from .ssrf_rows import ScriptedResolver

POLICY = EgressPolicy.parse(["127.0.0.0/8", "host=good.test"])


@pytest.fixture
def authority() -> trustme.CA:
    """A certificate authority of this test."""
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    """Its certificate, as an operator's bundle."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def _server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


async def _result(context: ssl.SSLContext, ca_file: Path, host: str = "good.test") -> str:
    async with raw_server(OK, tls=context) as server:
        job = make_job(server.url(host=host))
        outcome = await deliver(job, policy=POLICY, resolver=ScriptedResolver(["127.0.0.1"]), ca_file=ca_file)
        assert isinstance(outcome, Success | Retry)
        if isinstance(outcome, Retry):
            assert server.received == []
            assert "127.0.0.1" not in (outcome.report.error or "") or host == "127.0.0.1"
        return report_of(outcome).result


async def test_fo_067_name_is_verified_though_an_address_is_dialled(authority: trustme.CA, ca_file: Path) -> None:
    """FO-067: a certificate for good.test is accepted for good.test pinned to loopback."""
    context = _server_context(authority.issue_cert("good.test"))
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)
    assert await _result(context, ca_file) == "success"
    assert names == ["good.test"]


async def test_fo_067_bad_certificates_are_refused(authority: trustme.CA, ca_file: Path) -> None:
    """FO-067, FO-077: another name, an expired one, an unknown issuer: tls_error, retried, and no request is sent."""
    past = datetime.now(UTC) - timedelta(days=1)
    for leaf in (
        authority.issue_cert("bad.test"),
        authority.issue_cert("good.test", not_before=past - timedelta(days=9), not_after=past),
        trustme.CA().issue_cert("good.test"),
        authority.issue_cert("127.0.0.1"),
    ):
        assert await _result(_server_context(leaf), ca_file) == "tls_error"


async def test_name_that_stands_only_in_the_common_name_is_refused(ca_file: Path, authority: trustme.CA) -> None:
    """RFC 9525: a certificate names its host in the subject alternative names; CN=good.test is a remark."""
    leaf = authority.issue_cert(common_name="good.test")
    assert await _result(_server_context(leaf), ca_file) == "tls_error"
    wildcard = _server_context(authority.issue_cert("*.test", "*.good.test"))
    assert await _result(wildcard, ca_file) == "tls_error"  # no wildcard stands right below the root


async def test_literal_target_needs_an_ip_subject_name(authority: trustme.CA, ca_file: Path) -> None:
    """https://127.0.0.1 is verified against the address, not against any name."""
    named = _server_context(authority.issue_cert("good.test"))
    assert await _result(named, ca_file, host="127.0.0.1") == "tls_error"
    numbered = _server_context(authority.issue_cert("127.0.0.1"))
    assert await _result(numbered, ca_file, host="127.0.0.1") == "success"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_1_1_is_refused(authority: trustme.CA, ca_file: Path) -> None:
    """Below TLS 1.2 there is no request."""
    context = _server_context(authority.issue_cert("good.test"))
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert await _result(context, ca_file) == "tls_error"


async def test_plain_http_behind_an_https_url_is_a_tls_error(ca_file: Path) -> None:
    """A handshake that gets HTTP back fails as TLS."""

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad\r\n\r\n")
        writer.close()

    port = closed_port()
    server = await asyncio.start_server(greet, "127.0.0.1", port)
    job = make_job(f"https://good.test:{port}/")
    outcome = await deliver(job, policy=POLICY, resolver=ScriptedResolver(["127.0.0.1"]), ca_file=ca_file)
    server.close()
    assert report_of(outcome).result == "tls_error"


async def test_environment_moves_no_trust(
    authority: trustme.CA, ca_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE does not make an unknown issuer known, SSLKEYLOGFILE writes no keys."""
    keys = tmp_path / "keys"
    other = trustme.CA()
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("SSLKEYLOGFILE", str(keys))
    assert await _result(_server_context(other.issue_cert("good.test")), ca_file) == "tls_error"
    async with raw_server(OK, tls=_server_context(other.issue_cert("good.test"))) as server:
        job = make_job(server.url(host="good.test"))
        outcome = await deliver(job, policy=POLICY, resolver=ScriptedResolver(["127.0.0.1"]))
    assert report_of(outcome).result == "tls_error"
    assert await _result(_server_context(authority.issue_cert("good.test")), ca_file) == "success"
    assert not keys.exists()


def test_context_is_strict_and_a_bad_bundle_is_named(tmp_path: Path) -> None:
    """Verification on, TLS 1.2 at least; a bundle that cannot be read is an error at start, naming the file."""
    context = tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    for path in (tmp_path / "missing.pem", Path(__file__)):
        with pytest.raises(InvalidInputError, match=path.name):
            tls_context(path)
