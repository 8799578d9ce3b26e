"""The keys of a server's entry in a file: ours by the kind of server, and what other products call theirs.

Tables. Every key that is known stands here, and any other is an error that names the nearest. What another product
calls a key and Moorings would misunderstand in silence (``disabledTools``, ``envFile``) is an error that says what to
write.
"""

from __future__ import annotations

from collections.abc import Mapping

from .auth_spec import SECRETS, AuthSettings
from .bounds import SHORTCUTS
from .http_spec import HttpServer
from .spec import ServerSpec, StdioServer

__all__ = [
    "AUTH_ALIASES",
    "AUTH_KEYS",
    "AUTH_SPECIAL",
    "HEADER_KEYS",
    "HTTP_KEYS",
    "HTTP_KINDS",
    "IGNORED_KEYS",
    "INSTEAD",
    "LOCAL_KINDS",
    "LOGIN_KEYS",
    "OWN_AUTH_KEYS",
    "REMOTE_URL_KEYS",
    "RENAMED_AUTH_KEYS",
    "RENAMED_HTTP_KEYS",
    "RENAMED_KEYS",
    "STDIO_KEYS",
    "VARIABLE_KEYS",
    "WEBSOCKET_KINDS",
]

REMOTE_URL_KEYS: Mapping[str, str | None] = {"url": None, "serverUrl": None, "httpUrl": "http"}
"""Keys that hold the address, and the transport that the key alone says."""

HTTP_KINDS: Mapping[str, str] = {
    "auto": "auto",
    "http": "http",
    "remote": "auto",
    "sse": "sse",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
}
"""What ``type`` or ``transport`` says of an address → the transport."""

WEBSOCKET_KINDS = frozenset({"ws", "wss", "websocket"})
LOCAL_KINDS = frozenset({"stdio", "local"})

HEADER_KEYS: Mapping[str, str] = {
    "bearer_token_env_var": "the name of the variable that holds the token of `Authorization: Bearer`",
    "env_http_headers": "headers, each with the name of the variable that holds its value",
    "headersHelper": "`headers_command`, if it is the path of a program and nothing more",
    "http_headers": "`headers`",
}
"""Keys of other products that are read as they stand, and what they say."""

IGNORED_KEYS = frozenset(
    {"alwaysAllow", "alwaysLoad", "autoApprove", "description", "dev", "gallery", "trust", "version"}
)
"""Keys of other products that change nothing about how the server is run."""

RENAMED_KEYS: Mapping[str, str] = {
    "disabledTools": "exclude",
    "disabled_tools": "exclude",
    "enabledTools": "include",
    "enabled_tools": "include",
    "envFile": "env",
    "env_file": "env",
    "env_vars": "inherit_env",
    "excludeTools": "exclude",
    "includeTools": "include",
    "startup_timeout_sec": "connect_timeout",
    "tool_timeout_sec": "timeout",
}
"""Keys of other products that do matter, and what says it here."""

RENAMED_HTTP_KEYS: Mapping[str, str] = {
    "authorization_token": "headers",
    "bearer_token": "headers",
    "insecure": "verify",
    "requestInit": "headers",
    "verify_ssl": "verify",
}
"""The same, of servers with an address alone."""

INSTEAD: Mapping[str, str] = {
    "args": "'headers_command' for a program that gives headers",
    "env": "'headers' for a server over HTTP",
    "headers": "'env' for a local program",
}
"""A key of the one kind of server in an entry of the other → what is there in its place."""

LOGIN_KEYS: Mapping[str, str] = {
    "authProviderType": "left alone if it is `dynamic_discovery`; any other is an error",
    "oauth": "read as `auth`",
    "oauth_resource": "read as `auth.resource`",
    "scopes": "read as `auth.scopes`",
}
"""Keys of other products that say how to log in, and what is done about each."""

AUTH_ALIASES: Mapping[str, str] = {
    "CLIENT_ID": "client_id",
    "CLIENT_SECRET": "client_secret",
    "clientId": "client_id",
    "clientName": "client_name",
    "clientSecret": "client_secret",
    "redirectUri": "redirect_uri",
    "scope": "scopes",
}
"""What other products call our keys in a table ``auth`` or ``oauth``."""

AUTH_SPECIAL: Mapping[str, str] = {
    "callbackPort": "read as the `redirect_uri` that was registered for it: `http://localhost:PORT/callback`",
    "enabled": "if `false`, OAuth is never started, whatever else stands there",
}
"""Keys of other products in such a table that need more than another name."""

RENAMED_AUTH_KEYS: Mapping[str, str] = {
    "audience": "authorize_params",
    "audiences": "authorize_params",
    "authServerMetadataUrl": "issuer",
    "authorizationUrl": "issuer",
    "registrationUrl": "issuer",
    "tokenUrl": "issuer",
}
"""Keys of other products in such a table that do matter, and what says it here."""

OWN_AUTH_KEYS = frozenset(AuthSettings.__struct_fields__) - {"unresolved"}
VARIABLE_KEYS: Mapping[str, str] = {f"{name}_env": name for name in SECRETS}
"""Keys that name the variable which holds a secret → the secret."""
AUTH_KEYS = frozenset({*OWN_AUTH_KEYS, *VARIABLE_KEYS, *AUTH_ALIASES, *AUTH_SPECIAL})
"""All keys of a table ``auth`` or ``oauth``."""

_SHARED = {*ServerSpec.__struct_fields__, *SHORTCUTS, "disabled", "type"} - {"unresolved"}
STDIO_KEYS = frozenset(_SHARED | set(StdioServer.__struct_fields__) - {"unresolved"})
"""Keys of a server with a command."""
HTTP_KEYS = frozenset(
    _SHARED
    | (set(HttpServer.__struct_fields__) - {"unresolved"})
    | REMOTE_URL_KEYS.keys()
    | HEADER_KEYS.keys()
    | LOGIN_KEYS.keys()
)
"""Keys of a server with an address."""
