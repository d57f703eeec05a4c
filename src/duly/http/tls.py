"""The one TLS setting there is: TLS 1.2 or newer, always verified, against a trust store that no environment variable
moves."""

from __future__ import annotations

import ssl
from pathlib import Path

from duly.model.errors import InvalidInputError

CA_SETTING = "DULY_CA_FILE"

# Where distributions keep their bundle, for builds of OpenSSL whose compiled-in path does not exist on this machine.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def tls_context(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """A client context. `ca_file` replaces the system's trust store; InvalidInputError when it cannot be read.

    Built by hand: `ssl.create_default_context` obeys SSLKEYLOGFILE, and the default verify paths obey SSL_CERT_FILE.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.hostname_checks_common_name = False  # names are in the SAN and nowhere else: RFC 9525, section 2
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is None:
        _load_system_store(context)
        return context
    try:
        context.load_verify_locations(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise InvalidInputError(f"{CA_SETTING}: {ca_file} cannot be read as a PEM bundle ({error})") from error
    return context


def _load_system_store(context: ssl.SSLContext) -> None:
    compiled = ssl.get_default_verify_paths()  # .cafile and .capath follow the environment; these two do not
    if Path(compiled.openssl_cafile).is_file():
        context.load_verify_locations(cafile=compiled.openssl_cafile)
        return
    for bundle in _BUNDLES:
        if Path(bundle).is_file():
            context.load_verify_locations(cafile=bundle)
            return
    if Path(compiled.openssl_capath).is_dir():
        context.load_verify_locations(capath=compiled.openssl_capath)
