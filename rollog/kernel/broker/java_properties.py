"""A Java client's properties file (`client.properties`) as settings of a secured connection.

Understood are the keys that Kafka's own tools and the consoles of hosted clusters write: `security.protocol`,
`sasl.mechanism`, `sasl.jaas.config` of the Plain, Scram and OAuth login modules, and stores of type PEM. What only Java
can use is refused by name. Secrets stay in the file: it is read again whenever a client is made.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rollog.kernel.broker.security import (
    Mechanism,
    OAuthSettings,
    Protocol,
    Secret,
    SecuritySettings,
    read_text,
    table,
)
from rollog.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_Kind = TypeVar("_Kind", Protocol, Mechanism)
_key = f"{table}.properties_file"
_login_module = re.compile(
    r"^\s*(?P<class>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<rest>.*);\s*$", re.DOTALL
)
_option = re.compile(
    r"""(?P<name>[\w.]+)\s*=\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)'|(?P<bare>[^\s;"']+))"""
)
_not_usable = {
    "ssl.truststore.password": "a PEM trust store has no password",
    "ssl.keystore.certificate.chain": "name a file as ssl.keystore.location with ssl.keystore.type=PEM",
    "ssl.keystore.key": "name a file as ssl.keystore.location with ssl.keystore.type=PEM",
    "ssl.truststore.certificates": "name a file as ssl.truststore.location with ssl.truststore.type=PEM",
    "sasl.kerberos.service.name": "rollog does not connect by Kerberos",
}


def security_of_properties(path: Path) -> SecuritySettings:
    """What the file says. Raises ConfigError, naming the file, the key and the remedy."""
    found = parse_properties(read_text(path, _key))
    protocol = _one_of(
        Protocol, found.get("security.protocol", "PLAINTEXT").upper(), path, "security.protocol"
    )
    # First the stores: one of another type has a password as well, and that is not what is wrong with it.
    truststore, keystore = (
        _store(path, found, name) if protocol.has_tls else None for name in ("ssl.truststore", "ssl.keystore")
    )
    for key, reason in _not_usable.items():
        if key in found:
            raise _refused(path, key, reason)
    mechanism = None
    if protocol.has_sasl:
        name = found.get("sasl.mechanism", "")
        mechanism = _one_of(Mechanism, name, path, "sasl.mechanism")
    options = _login_options(path, found) if mechanism not in {None, Mechanism.AWS_MSK_IAM} else {}
    return SecuritySettings(
        protocol=protocol,
        mechanism=mechanism,
        ca_file=truststore,
        certificate_file=keystore,
        key_passphrase=_secret(path, "ssl.key.password")
        if keystore and "ssl.key.password" in found
        else None,
        check_hostname=bool(found.get("ssl.endpoint.identification.algorithm", "https")),
        username=options.get("username") if mechanism is not None and mechanism.has_password else None,
        password=_password(path, options, mechanism),
        oauth=_oauth(path, found, options) if mechanism is Mechanism.OAUTHBEARER else None,
    )


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of `java.util.Properties`: comments, continued lines, `=`, `:` or blanks between, escapes."""
    found = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)$", line, re.DOTALL)
        assert match is not None
        found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _logical_lines(text: str) -> list[str]:
    lines, held = [], ""
    for raw in text.splitlines():
        line = held + raw.lstrip()
        if not held and (not line or line[0] in "#!"):
            continue
        num_backslashes = len(line) - len(line.rstrip("\\"))
        if num_backslashes % 2:
            held = line[:-1]
            continue
        lines.append(line)
        held = ""
    return [*lines, held] if held else lines


def _unescaped(text: str) -> str:
    known = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def one(match: re.Match[str]) -> str:
        if match["code"]:
            return chr(int(match["code"], 16))
        return known.get(match["other"], match["other"])

    return re.sub(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<other>.))", one, text, flags=re.DOTALL)


def _login_options(path: Path, found: Mapping[str, str]) -> dict[str, str]:
    """The options of `sasl.jaas.config`."""
    text = found.get("sasl.jaas.config")
    if text is None:
        raise _refused(path, "sasl.jaas.config", "it is missing: it holds username and password")
    match = _login_module.match(text)
    if match is None:
        raise _refused(path, "sasl.jaas.config", 'it is not `CLASS required name="value" ...;`')
    module = match["class"].rsplit(".", 1)[-1]
    if module not in {"PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule"}:
        raise _refused(
            path,
            "sasl.jaas.config",
            f"rollog has no {module}: use PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule",
        )
    return {option["name"]: _value(option) for option in _option.finditer(match["rest"])}


def _value(option: re.Match[str]) -> str:
    quoted = option["double"] if option["double"] is not None else option["single"]
    return option["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)


def _password(path: Path, options: Mapping[str, str], mechanism: Mechanism | None) -> Secret | None:
    if mechanism is None or not mechanism.has_password:
        return None
    for name in ("username", "password"):
        if name not in options:
            raise _refused(path, "sasl.jaas.config", f"it has no {name}")
    return _login_secret(path, "password")


def _oauth(path: Path, found: Mapping[str, str], options: Mapping[str, str]) -> OAuthSettings:
    if "clientSecret" not in options and "sasl.oauthbearer.client.credentials.client.secret" in found:
        secret = _secret(path, "sasl.oauthbearer.client.credentials.client.secret")
    else:
        secret = _login_secret(path, "clientSecret")
    return OAuthSettings(
        token_url=found.get("sasl.oauthbearer.token.endpoint.url"),
        client_id=options.get("clientId", found.get("sasl.oauthbearer.client.credentials.client.id")),
        client_secret=secret,
        scope=options.get("scope", found.get("sasl.oauthbearer.scope")),
    )


def _secret(path: Path, key: str) -> Secret:
    """An entry of the file; `read` fails where it is gone."""
    return Secret(f"{_key} ({key})", file=path, find=lambda text: parse_properties(text).get(key, ""))


def _login_secret(path: Path, option: str) -> Secret:
    def find(text: str) -> str:
        return _login_options(path, parse_properties(text)).get(option, "")

    return Secret(f"{_key} ({option} of sasl.jaas.config)", file=path, find=find)


def _store(path: Path, found: Mapping[str, str], name: str) -> Path | None:
    location = found.get(f"{name}.location")
    if location is None:
        return None
    kind = found.get(f"{name}.type", "JKS").upper()
    if kind != "PEM":
        exported = "certificates" if name == "ssl.truststore" else "certificate and key"
        raise _refused(
            path,
            f"{name}.location",
            f"{location} is a store of type {kind}, which only Java reads: export its {exported} as PEM (`keytool"
            f" -importkeystore` to PKCS12, then `openssl pkcs12`) and set {name}.type=PEM",
        )
    return Path(location)


def _one_of(kinds: type[_Kind], value: str, path: Path, key: str) -> _Kind:
    try:
        return kinds(value)
    except ValueError:
        raise _refused(path, key, f"{value!r} is none of {', '.join(kinds)}") from None


def _refused(path: Path, key: str, reason: str) -> ConfigError:
    return ConfigError(f"{_key} = {path}: {key} cannot be used: {reason}")
