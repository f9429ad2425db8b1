"""An embedded Apache Kafka with every kind of listener that rollog connects to, and an authorizer.

    listeners = SecuredListeners(users={"ada": "pw", "eve": "pw"}, super_users=("ada",))
    with SecuredKafka(directory, cache, secured=listeners) as kafka:
        kafka.grant("eve", ACLOperation.READ, "topic")
        with kafka.broker("eve").consumer(client_id="eve") as consumer:
            ...

Users of SCRAM are made when the storage is formatted. A client certificate `kafka.certificate_of("ada")` is the
principal `User:ada`, too. Nobody but super users has any right until an ACL gives it.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from rollog.kernel.broker.embedded import EmbeddedKafka
from rollog.kernel.broker.embedded_settings import loopback, server_properties
from rollog.kernel.broker.kafka import KafkaBroker
from rollog.settings.security import SecurityConfig, security_settings
from support.certificates import Authority, Issued

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from rollog.kernel.broker.clients import ClientName


class Listener(StrEnum):
    """The listeners, by Kafka's name for each."""

    PLAIN_TEXT = "PLAINTEXT"
    """Neither TLS nor users: its clients are User:ANONYMOUS, who has no right."""
    SCRAM_TLS = "SASL_SSL"
    """SCRAM-SHA-512, SCRAM-SHA-256 and PLAIN over TLS."""
    SCRAM_PLAIN_TEXT = "SASL_PLAINTEXT"
    """The same without TLS."""
    TLS = "TLS"
    """TLS without users."""
    MUTUAL_TLS = "MTLS"
    """TLS with client certificates."""
    OAUTH = "OAUTH"
    """OAUTHBEARER over TLS; takes tokens without a signature, as only tests may."""
    EXPIRED = "EXPIRED"
    """As SCRAM_TLS, with a certificate that is no longer valid."""
    OTHER_HOST = "OTHERHOST"
    """As SCRAM_TLS, with a certificate for another host."""


_protocols = {
    Listener.PLAIN_TEXT: "PLAINTEXT",
    Listener.SCRAM_TLS: "SASL_SSL",
    Listener.SCRAM_PLAIN_TEXT: "SASL_PLAINTEXT",
    Listener.TLS: "SSL",
    Listener.MUTUAL_TLS: "SSL",
    Listener.OAUTH: "SASL_SSL",
    Listener.EXPIRED: "SASL_SSL",
    Listener.OTHER_HOST: "SASL_SSL",
}
_password_listeners = (
    Listener.SCRAM_TLS,
    Listener.SCRAM_PLAIN_TEXT,
    Listener.EXPIRED,
    Listener.OTHER_HOST,
)
_mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN"
_literal = ACLResourcePatternType.LITERAL
_security_package = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredListeners:
    """Who may connect, and who needs no ACL."""

    users: Mapping[str, str] = field(default_factory=lambda: {"admin": "admin-password"})
    """Passwords by user, for SCRAM and PLAIN alike."""
    super_users: tuple[str, ...] = ("admin",)
    """Who may do everything; the broker itself always may."""
    message_max_bytes: int | None = None
    """Largest record that the broker takes where a topic does not say; None: rollog's own."""
    reauthentication_ms: int | None = None
    """After how long a client of SASL must say who it is again on the same connection; None: never."""


class SecuredKafka(EmbeddedKafka):
    """One Apache Kafka on loopback with all of `Listener`, users and ACLs."""

    def __init__(
        self,
        data_directory: Path,
        cache_directory: Path,
        *,
        secured: SecuredListeners | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(data_directory, cache_directory, tell=tell)
        self.secured = secured or SecuredListeners()
        self.client: ClientName = "auto"
        """Through which library its brokers are used that are made from now on."""
        self.authority = Authority(data_directory / "certificates")
        """Who has signed the broker's certificates and those of its clients."""
        self._own = self.authority.issue("broker")
        self._expired = self.authority.issue("broker", days=(-30, -1), file_name="expired")
        self._other_host = self.authority.issue(
            "broker", hosts=("kafka.example.org",), file_name="other-host"
        )
        self._ports: dict[Listener, int] = {}

    def address_of(self, listener: Listener) -> str:
        """`host:port` of a listener."""
        return self.address if listener is Listener.PLAIN_TEXT else f"{loopback}:{self._ports[listener]}"

    def certificate_of(self, user: str) -> Issued:
        """A client certificate for `User:user`."""
        return self.authority.issue(user, hosts=())

    def table(self, user: str, listener: Listener = Listener.SCRAM_TLS) -> dict[str, Any]:
        """The settings `broker.security` of a user; MUTUAL_TLS by certificate, others by password."""
        table: dict[str, Any] = {"protocol": _protocols[listener]}
        if "SSL" in _protocols[listener]:
            table["ca_file"] = str(self.authority.path)
        if listener is Listener.MUTUAL_TLS:
            issued = self.certificate_of(user)
            table |= {"certificate_file": str(issued.certificate), "key_file": str(issued.key)}
        if listener in _password_listeners:
            table |= {"mechanism": "SCRAM-SHA-512", "username": user}
            table["password_file"] = str(self._password_file(user))
        return table

    def broker(
        self, user: str = "admin", listener: Listener = Listener.SCRAM_TLS, **changes: Any
    ) -> KafkaBroker:
        """The cluster as `user` sees it through `listener`, with changed settings."""
        table = {
            key: value for key, value in (self.table(user, listener) | changes).items() if value is not None
        }
        return KafkaBroker(
            self.address_of(listener),
            client=self.client,
            security=security_settings(SecurityConfig.model_validate(table)),
        )

    def grant(
        self,
        user: str,
        operation: ACLOperation,
        name: str,
        *,
        kind: ResourceType = ResourceType.TOPIC,
        is_prefix: bool = False,
    ) -> None:
        """Give a right by an ACL, as the first super user."""
        pattern = ResourcePattern(kind, name, ACLResourcePatternType.PREFIXED if is_prefix else _literal)
        acl = ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, pattern)
        with self._super_user() as client:
            failed = client.create_acls([acl])["failed"]
        if failed:
            raise AssertionError(f"ACLs not made: {failed}")

    def change_password(self, user: str, password: str, *, is_written: bool = False) -> None:
        """Give a user another password for SCRAM-SHA-512; who is connected stays so.

        With `is_written` the file that `table` names has it, too.
        """
        with self._super_user() as client:
            told = client.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, password)]
            )
        if told[user] is not None:
            raise AssertionError(f"the password was not changed: {told[user]}")
        if is_written:
            self._password_file(user).write_text(f"{password}\n")

    @contextmanager
    def _super_user(self) -> Iterator[Any]:
        client = KafkaAdminClient(
            bootstrap_servers=[self.address_of(Listener.SCRAM_TLS)],
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username=self.secured.super_users[0],
            sasl_plain_password=self.secured.users[self.secured.super_users[0]],
            ssl_cafile=str(self.authority.path),
        )
        try:
            yield client
        finally:
            client.close()

    def _password_file(self, user: str) -> Path:
        path = self.authority.path.with_name(f"{user}.password")
        # Not over what a test has changed there.
        if not path.exists():
            path.write_text(f"{self.secured.users[user]}\n")
        return path

    def _server_properties(self, log_directory: Path, broker_port: int, controller_port: int) -> str:
        if not self._ports:
            self._ports = _free_ports([each for each in Listener if each is not Listener.PLAIN_TEXT])
        ports = {Listener.PLAIN_TEXT: broker_port, **self._ports}
        settings = {
            **_listener_settings(ports, controller_port),
            **self._tls_settings(),
            **self._user_settings(),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": ";".join(f"User:{user}" for user in ("broker", *self.secured.super_users)),
            "allow.everyone.if.no.acl.found": "false",
        }
        if self.secured.message_max_bytes is not None:
            settings["message.max.bytes"] = str(self.secured.message_max_bytes)
        if self.secured.reauthentication_ms is not None:
            settings["connections.max.reauth.ms"] = str(self.secured.reauthentication_ms)
        # A name that comes again later counts.
        plain = server_properties(log_directory, broker_port, controller_port)
        return plain + "".join(f"{name}={value}\n" for name, value in settings.items())

    def _format_arguments(self) -> tuple[str, ...]:
        users = [
            f"{mechanism}=[name={user},password={password}]"
            for user, password in self.secured.users.items()
            for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256")
        ]
        return tuple(part for user in users for part in ("--add-scram", user))

    def _tls_settings(self) -> dict[str, str]:
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._own.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.path),
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        }
        for listener, issued in {
            Listener.EXPIRED: self._expired,
            Listener.OTHER_HOST: self._other_host,
        }.items():
            settings[f"listener.name.{listener.lower()}.ssl.keystore.location"] = str(issued.store)
        for name in (Listener.MUTUAL_TLS, "controller"):
            settings[f"listener.name.{name.lower()}.ssl.client.auth"] = "required"
        return settings

    def _user_settings(self) -> dict[str, str]:
        settings = {}
        plain_users = " ".join(f'user_{user}="{password}"' for user, password in self.secured.users.items())
        for listener in _password_listeners:
            name = f"listener.name.{listener.lower()}"
            settings[f"{name}.sasl.enabled.mechanisms"] = _mechanisms
            for mechanism in ("scram-sha-512", "scram-sha-256"):
                module = f"{_security_package}.scram.ScramLoginModule"
                settings[f"{name}.{mechanism}.sasl.jaas.config"] = f"{module} required;"
            module = f"{_security_package}.plain.PlainLoginModule"
            settings[f"{name}.plain.sasl.jaas.config"] = f"{module} required {plain_users};"
        name = f"listener.name.{Listener.OAUTH.lower()}"
        module = f"{_security_package}.oauthbearer.OAuthBearerLoginModule"
        settings[f"{name}.sasl.enabled.mechanisms"] = "OAUTHBEARER"
        settings[f"{name}.oauthbearer.sasl.jaas.config"] = (
            f'{module} required unsecuredLoginStringClaim_sub="broker";'
        )
        return settings


def _listener_settings(ports: Mapping[Listener, int], controller_port: int) -> dict[str, str]:
    advertised = ",".join(f"{name}://{loopback}:{port}" for name, port in ports.items())
    protocols = ",".join(f"{name}:{protocol}" for name, protocol in _protocols.items())
    return {
        "listeners": f"{advertised},CONTROLLER://{loopback}:{controller_port}",
        "advertised.listeners": advertised,
        "inter.broker.listener.name": Listener.MUTUAL_TLS,
        "listener.security.protocol.map": f"{protocols},CONTROLLER:SSL",
    }


def _free_ports(listeners: list[Listener]) -> dict[Listener, int]:
    """Ports that are free together; those of a broker that starts again stay."""
    probes = {listener: socket.socket() for listener in listeners}
    try:
        for probe in probes.values():
            probe.bind((loopback, 0))
        return {listener: int(probe.getsockname()[1]) for listener, probe in probes.items()}
    finally:
        for probe in probes.values():
            probe.close()
