"""The table `broker.security`: what fits together, where secrets stand, what a properties file may say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rollog.kernel.broker.java_properties import parse_properties, security_of_properties
from rollog.kernel.broker.kafka_security import security_settings as kafka_settings
from rollog.kernel.broker.security import Mechanism, Protocol, plain_text
from rollog.kernel.errors import ConfigError
from rollog.settings.security import SecurityConfig, security_settings, security_variables
from rollog.settings.settings import Settings
from rollog.settings.sources import load_settings, security_config

if TYPE_CHECKING:
    from pathlib import Path

scram = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": "lovelace", "password_env": "ADA"}


def settings_of(table: dict[str, Any]) -> Settings:
    return load_settings(sections={"broker": {"security": table}})


def test_without_a_table_clients_connect_in_plain_text() -> None:
    assert Settings().broker.security is None
    assert security_settings(None) == plain_text
    assert kafka_settings(plain_text) == {"security_protocol": "PLAINTEXT"}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"protocol": "SASL_SSL"}, "needs broker.security.mechanism"),
        ({"mechanism": "PLAIN"}, "set protocol to SASL_SSL"),
        ({"ca_file": "/ca.pem"}, "has no TLS: set protocol to SSL"),
        ({"protocol": "SSL", "key_file": "/key.pem"}, "without certificate_file"),
        (scram | {"password_env": None}, "set username, and password_file or password_env"),
        (scram | {"password_file": "/p"}, "are both set: leave one of them out"),
        (scram | {"mechanism": "OAUTHBEARER"}, "needs a token"),
        (
            scram | {"mechanism": "OAUTHBEARER", "oauth_token_url": "http://user:pw@host/token"},
            "'http://host/token' is not https",
        ),
        ({"protocol": "SASL_PLAINTEXT", "mechanism": "AWS_MSK_IAM"}, "AWS_MSK_IAM needs"),
        (scram | {"oauth_scope": "x"}, "has keys of OAuth"),
    ],
)
def test_what_does_not_fit_together_is_named_with_a_remedy(table: dict[str, Any], told: str) -> None:
    given = {key: value for key, value in table.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        security_settings(settings_of(given).broker.security)
    assert told in str(caught.value)


@pytest.mark.parametrize("key", ["password", "key_passphrase", "oauth_client_secret", "oauth_token"])
def test_a_secret_itself_is_not_taken_nor_shown(key: str) -> None:
    sources: list[dict[str, Any]] = [
        {"sections": {"broker": {"security": {"protocol": "SSL", key: "hush-hush"}}}},
        {"environment": {f"ROLLOG_BROKER__SECURITY__{key.upper()}": "hush-hush"}},
        {"assignments": [f"broker.security.{key}=hush-hush"]},
    ]
    for source in sources:
        with pytest.raises(ConfigError) as caught:
            load_settings(**source)
        assert f"{key}_file" in str(caught.value)
        assert "hush-hush" not in str(caught.value)


def test_the_manifest_does_not_hold_how_to_connect() -> None:
    assert "lovelace" not in settings_of(scram).to_manifest()


def test_a_secret_is_read_when_a_client_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by_variable = security_settings(SecurityConfig(**scram))
    with pytest.raises(ConfigError, match="environment variable ADA is not set"):
        kafka_settings(by_variable)
    for value in ("first", "second"):
        monkeypatch.setenv("ADA", value)
        assert kafka_settings(by_variable)["sasl_plain_password"] == value
    path = tmp_path / "password"
    by_file = security_settings(
        SecurityConfig(**(scram | {"password_env": None, "password_file": str(path)}))
    )
    with pytest.raises(ConfigError, match="there is no file"):
        kafka_settings(by_file)
    path.write_text("third\n")
    assert kafka_settings(by_file)["sasl_plain_password"] == "third"
    assert "second" not in repr(by_variable)
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        kafka_settings(by_file)


def test_roles_get_the_same_table_by_their_environment() -> None:
    tables: list[dict[str, Any]] = [
        scram | {"ca_file": "/etc/ca.pem", "check_hostname": False, "username": '1"2\\'},
        {"properties_file": "/etc/client.properties"},
    ]
    for table in tables:
        config = SecurityConfig(**table)
        assert security_config(None, security_variables(config)) == config
    assert security_variables(None) == {}
    assert security_config(scram, {"ROLLOG_BROKER__SECURITY__USERNAME": "eve"}) == SecurityConfig(
        **(scram | {"username": "eve"})
    )


def test_a_properties_file_stands_alone() -> None:
    with pytest.raises(ConfigError, match="properties_file says everything, but username"):
        settings_of({"properties_file": "/client.properties", "username": "lovelace"})


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# no\n! no\n a=1\nb : two words\nc\td\\\n   e\nf\\:g=h\\u0041\\n\n\nempty=\nback=a\\\\\nlast=\\"
    assert parse_properties(text) == {
        "a": "1",
        "b": "two words",
        "c": "de",
        "f:g": "hA\n",
        "empty": "",
        "back": "a\\",
        "last": "",
    }


def properties(directory: Path, *lines: str) -> Path:
    path = directory / "client.properties"
    path.write_text("\n".join(lines))
    return path


login = "org.apache.kafka.common.security.{} required {};"


def test_the_file_of_a_hosted_cluster_is_understood(tmp_path: Path) -> None:
    module = login.format("plain.PlainLoginModule", "username='KEY' password='sec\\'ret'")
    path = properties(
        tmp_path,
        "bootstrap.servers=pkc.example.org:9092",
        "security.protocol=SASL_SSL",
        f"sasl.jaas.config={module}".replace("\\", "\\\\"),
        "sasl.mechanism=PLAIN",
        "client.dns.lookup=use_all_dns_ips",
    )
    found = security_of_properties(path)
    assert (found.protocol, found.mechanism, found.username) == (Protocol.SASL_SSL, Mechanism.PLAIN, "KEY")
    assert kafka_settings(found)["sasl_plain_password"] == "sec'ret"
    assert "sec'ret" not in repr(found)


def test_pem_stores_and_oauth_are_understood(tmp_path: Path) -> None:
    module = login.format(
        "oauthbearer.OAuthBearerLoginModule", 'clientId="me" clientSecret="hush" scope="all"'
    )
    found = security_of_properties(
        properties(
            tmp_path,
            "security.protocol=SASL_SSL",
            "sasl.mechanism=OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url=https://idp.example.org/token",
            f"sasl.jaas.config={module}",
            "ssl.truststore.type=PEM",
            "ssl.truststore.location=/etc/ca.pem",
            "ssl.keystore.type=PEM",
            "ssl.keystore.location=/etc/me.pem",
            "ssl.key.password=phrase",
            "ssl.endpoint.identification.algorithm=",
        )
    )
    assert found.oauth is not None
    assert (found.oauth.client_id, found.oauth.scope) == ("me", "all")
    assert found.oauth.client_secret is not None
    assert found.oauth.client_secret.read() == "hush"
    assert (str(found.ca_file), str(found.certificate_file)) == ("/etc/ca.pem", "/etc/me.pem")
    assert found.key_passphrase is not None
    assert found.key_passphrase.read() == "phrase"
    assert not found.check_hostname


def test_a_file_for_amazon_msk_is_understood_without_what_its_java_library_needs(tmp_path: Path) -> None:
    found = security_of_properties(
        properties(
            tmp_path,
            "security.protocol=SASL_SSL",
            "sasl.mechanism=AWS_MSK_IAM",
            "sasl.jaas.config=software.amazon.msk.auth.iam.IAMLoginModule required;",
            "sasl.client.callback.handler.class=software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        )
    )
    assert (found.mechanism, found.username, found.password) == (Mechanism.AWS_MSK_IAM, None, None)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ["security.protocol=SSL", "ssl.truststore.location=/t.jks"],
            "a store of type JKS, which only Java reads",
        ),
        (
            ["security.protocol=SSL", "ssl.truststore.location=/t.jks", "ssl.truststore.password=hush"],
            "a store of type JKS, which only Java reads",
        ),
        (
            [
                "security.protocol=SSL",
                "ssl.truststore.location=/t.pem",
                "ssl.truststore.type=PEM",
                "ssl.truststore.password=hush",
            ],
            "a PEM trust store has no password",
        ),
        (["security.protocol=TLS"], "'TLS' is none of PLAINTEXT, SSL"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=GSSAPI"], "'GSSAPI' is none of PLAIN"),
        (
            ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN"],
            "sasl.jaas.config cannot be used: it is missing",
        ),
        (
            [
                "security.protocol=SASL_SSL",
                "sasl.mechanism=PLAIN",
                "sasl.jaas.config=" + login.format("ldap.LdapLoginModule", "password=hush"),
            ],
            "rollog has no LdapLoginModule",
        ),
        (
            [
                "security.protocol=SASL_SSL",
                "sasl.mechanism=PLAIN",
                "sasl.jaas.config=" + login.format("plain.PlainLoginModule", "password=hush"),
            ],
            "it has no username",
        ),
    ],
)
def test_what_a_file_says_that_cannot_be_used_is_named(tmp_path: Path, lines: list[str], told: str) -> None:
    path = properties(tmp_path, *lines)
    with pytest.raises(ConfigError) as caught:
        security_of_properties(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "hush" not in str(caught.value)
