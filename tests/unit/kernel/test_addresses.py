"""What of an address and of a table may be shown and recorded."""

from __future__ import annotations

import pytest

from rollog.kernel.addresses import names_secret, public_address, public_value, without_secret_values


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("https://me:hush@host/x", "https://host/x"),
        ("https://hush@host/x", "https://host/x"),
        ("//me:hush@host", "//host"),
        ("s3://me:hu/sh@bucket/k@2", "s3://bucket/k@2"),
        ("s3://me:hu?sh@bucket/k", "s3://bucket/k"),
        ("s3://me@hush@bucket/k", "s3://bucket/k"),
        ("simplecache::s3://me:hush@bucket/p", "simplecache::s3://bucket/p"),
        ("https://me:hush@[::1]:9000/b", "https://[::1]:9000/b"),
        ("SASL_SSL://a:hush@h:1,SASL_SSL://b:hush@g:2", "SASL_SSL://h:1,SASL_SSL://g:2"),
        ("me:hush@host:9092,you:hush@other:1", "host:9092,other:1"),
        ("abfs://me:hush@account.example/x", "abfs://account.example/x"),
        ("s3://b/p?X-Amz-Signature=hush&region=x&X-Amz-Credential=hush", "s3://b/p?region=x"),
        ("s3://b/p?region=x&x-amz-security-token=hush", "s3://b/p?region=x"),
        ("https://h/p?AWSAccessKeyId=hush&token=hush&key=hush&password=hush", "https://h/p"),
        ("https://h/p?GoogleAccessId=hush&Signature=hush&Expires=1", "https://h/p?Expires=1"),
        ("https://h/p?sv=1&sig=hush", "https://h/p?sv=1"),
        ("https://h/p?%73ig=hush&a=2", "https://h/p?a=2"),
        ("https://h/p?a=1#access_token=hush", "https://h/p?a=1"),
        ("https://h/p;password=hush?x=1", "https://h/p?x=1"),
        ("kafka://h/p?sasl.jaas.config=hush&sasl_password=hush", "kafka://h/p"),
        ("s3://b/p?storage_options={'key': 'hush'}", "s3://b/p"),
        ('s3://b/p?storage_options={"client_kwargs":{"aws_secret_access_key":"hush"}}', "s3://b/p"),
    ],
)
def test_an_address_loses_users_signatures_and_keys(address: str, public: str) -> None:
    assert public_address(address) == public
    assert public_address(public) == public
    assert "hush" not in public


@pytest.mark.parametrize(
    "address",
    [
        "file:///data/a@b",
        "/data/key=3/a@b?x",
        "s3://bucket/key=3/x?versionId=4#part",
        "https://host:443/p@q",
        "http://[::1]:9000/b",
        "abfs://container@account.example/x",
        "memory://x",
        "kafka:9092,other:9092",
        "openai/gsm8k",
        "",
    ],
)
def test_an_address_without_any_stays_as_it_is(address: str) -> None:
    assert public_address(address) == address


def test_secrets_are_known_by_their_names() -> None:
    secret = [
        "hf_token",
        "awsSecretAccessKey",
        "AWSAccessKeyId",
        "api-key",
        "apikey",
        "sasl.password",
        "key",
        "pwd",
    ]
    plain = [
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "tokenizer",
        "keyspace",
        "kv_cache_dtype",
    ]
    assert [name for name in [*secret, *plain] if names_secret(name)] == secret


def test_a_table_loses_secrets_however_deep() -> None:
    table = {
        "seed": 1,
        "password": 5,
        "loader": '{"storage_options": {"key": "hush", "anon": false}}',
        "where": ["s3://me:hush@bucket/x", {"auth": {"any": "hush"}, "kept": "[no json"}],
    }
    assert public_value(table) == {
        "seed": 1,
        "loader": '{"storage_options": {"anon": false}}',
        "where": ["s3://bucket/x", {"kept": "[no json"}],
    }


def test_a_message_about_a_table_loses_the_values_of_secrets() -> None:
    table = {"hf_token": "hu'sh", "seed": 17, "uri": "s3://me:pw@b"}
    said = without_secret_values(f"bad: {table} in {table['hf_token']}", table)
    assert "sh" not in said
    assert "pw" not in said
    assert "17" in said
