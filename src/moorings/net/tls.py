"""The TLS of a client: the context of one setting, and what a failure of TLS means (RFC 8446 §6.2).

Making a context reads some 150 certificates and takes 20 ms: ``client.Net`` makes one for each setting, when the
first ``https://`` URL needs it, in a thread. Imported only then.
"""

from __future__ import annotations

import os
import ssl
import sys

from ..errors import ConfigError
from .errors import TlsFailed, TlsKind
from .settings import NetSettings

__all__ = ["explain", "make_context"]

BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where systems keep their certificates, if OpenSSL was built for another place (as in some Python builds)."""

# X509_V_ERR_… of OpenSSL's x509_vfy.h
VERIFY: dict[int, tuple[TlsKind, str]] = {
    9: ("not-yet-valid", "its certificate is not valid yet (or the clock here is wrong)"),
    10: ("expired", "its certificate has expired (or the clock here is wrong)"),
    18: ("unknown-ca", "its certificate is signed by itself and not trusted"),
    19: ("unknown-ca", "its certificate comes from an authority that is not trusted"),
    20: ("unknown-ca", "its certificate comes from an authority that is not known"),
    21: ("unknown-ca", "its certificate comes from an authority that is not known"),
    23: ("revoked", "its certificate has been revoked"),
    62: ("wrong-host", "its certificate is for another host"),
    64: ("wrong-host", "its certificate is for another address"),
}
# Symbols of OpenSSL's reason codes, which ``ssl`` gives as ``SSLError.reason``.
REFUSED: dict[str, TlsKind] = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "client-certificate-required",
    "SSLV3_ALERT_BAD_CERTIFICATE": "client-certificate-refused",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "client-certificate-refused",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "client-certificate-refused",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "client-certificate-refused",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "client-certificate-refused",
    "TLSV1_ALERT_UNKNOWN_CA": "client-certificate-refused",
    "TLSV1_ALERT_ACCESS_DENIED": "client-certificate-refused",
    "TLSV1_ALERT_DECRYPT_ERROR": "client-certificate-refused",
}
NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}


def make_context(settings: NetSettings) -> ssl.SSLContext:
    """The context of a setting. Reads files and blocks for some 20 ms.

    Raises:
        ConfigError: a file of the setting is missing or is not what it should be.
    """
    context = _trusting_the_system() if settings.verify else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if settings.ca_file is not None:
        _load("ca_file", settings.ca_file, lambda: context.load_verify_locations(cafile=settings.ca_file))
    if settings.client_cert is not None:
        _load_client(context, settings)
    return context


def _trusting_the_system() -> ssl.SSLContext:
    if _system_verifies():
        import truststore

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Here truststore would do the same, but anew for each connection: 20 ms of the loop's time.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    places = ssl.get_default_verify_paths()
    if places.cafile or (places.capath and os.path.isdir(places.capath) and os.listdir(places.capath)):
        context.set_default_verify_paths()
    else:
        for bundle in BUNDLES:
            if os.path.isfile(bundle):
                context.load_verify_locations(cafile=bundle)
                break
    return context


def _system_verifies() -> bool:
    """True where the system has a verifier of its own, beside files of certificates."""
    return sys.platform in ("darwin", "win32")


def _load(key: str, path: str, load: object) -> None:
    try:
        load()  # type: ignore[operator]
    except ssl.SSLError as error:
        raise ConfigError(
            f"{path} holds no certificates that can be read ({error.reason})", key=key
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {os.strerror(error.errno or 0)}", key=key) from None


def _load_client(context: ssl.SSLContext, settings: NetSettings) -> None:
    cert, key = settings.client_cert, settings.client_key
    assert cert is not None
    for name, path in (("client_cert", cert), ("client_key", key)):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"{path} is not there, or cannot be read", key=name)
    asked = False

    def password() -> str:
        # Without this OpenSSL would ask at the terminal, and wait for it.
        nonlocal asked
        asked = True
        return settings.client_key_password or ""

    try:
        context.load_cert_chain(cert, key, password)
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or type(error).__name__
        if asked:
            raise ConfigError(
                f"the key of {cert} needs a password, and "
                + ("the one given does not open it" if settings.client_key_password else "none is given"),
                key="client_key_password",
            ) from None
        raise ConfigError(
            f"{key or cert} is no key for the certificate {cert} ({why})", key="client_key"
        ) from None


def explain(error: BaseException, url: str, whose: str = "the server") -> TlsFailed:
    """The typed failure for what ``ssl`` raised, from its codes alone. ``whose`` is the side that was spoken to."""
    if isinstance(error, ssl.SSLCertVerificationError):
        kind, why = VERIFY.get(
            error.verify_code, ("certificate", f"its certificate is not valid (code {error.verify_code})")
        )
        return TlsFailed(f"{whose} is not trusted: {why}", url=url, kind=kind)
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    refused = REFUSED.get(reason)
    if refused == "client-certificate-required":
        return TlsFailed(f"{whose} wants a client certificate, and none is set", url=url, kind=refused)
    if refused is not None:
        return TlsFailed(
            f"{whose} does not accept our client certificate, or wants one ({reason})",
            url=url,
            kind="client-certificate-refused",
        )
    if reason in NO_TLS:
        return TlsFailed(f"{whose} does not speak TLS on this port", url=url, kind="no-tls")
    what = reason or type(error).__name__
    return TlsFailed(f"TLS with {whose} could not be set up ({what})", url=url, kind="handshake")


def refuses_us(error: BaseException | None) -> bool:
    """True for the alerts by which the other side ends a handshake because of our certificate.

    In TLS 1.3 they come after we took the handshake for done; what we wrote by then was not read.
    """
    return isinstance(error, ssl.SSLError) and error.reason in REFUSED
