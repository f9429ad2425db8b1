"""Addresses and tables as they may be shown and recorded: without users, passwords, signatures and keys.

    s3://me:pw@host/weights?region=x&X-Amz-Signature=ab   ->   s3://host/weights?region=x

What connects uses the address as it was given; what goes into a manifest, a message or a log uses these.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

if TYPE_CHECKING:
    from collections.abc import Mapping

_between_words = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_secret_words = re.compile(
    r"(.*(password|passwd|passphrase|secret|credentials?|signature)|pwd|pw|sig|sas|sasl|jwt|bearer|cookie|"
    r"auth|authorization|.*(api|access|private|secret|account|auth)keys?|keys?|user|username|userinfo|login|"
    r".*(access|auth|sas|session|security|bearer|id)tokens?)"
)
_secret_pairs = re.compile(r"(^|_)access_id(_|$)")

_user = re.compile(r"(?P<start>(?P<scheme>[A-Za-z0-9+.-]*):?//)(?P<user>[^/?#]*)@")
_user_without_scheme = re.compile(r"(^|(?<=,))[^/?#,@]*:[^/?#,]*@")
_bad_port = re.compile(r"//[^/?#@:\[\]]+:(?!\d*[/?#])[^/?#@]*[/?#].*?@")
"""What stands before `@` where a password holds `/`, `?` or `#` as they are: no port looks like that."""
_parameter = re.compile(r"(?P<mark>[?&;#])(?P<name>[^=&;#?]+)=(?P<value>[^?&;#]*)")
_container_schemes = {"abfs", "abfss", "wasb", "wasbs"}
"""In `abfs://container@account` what stands before `@` is no user."""


def names_secret(name: str) -> bool:
    """Whether a parameter, an entry of a table or a key of this name holds a secret or a user."""
    words = [word.lower() for word in _between_words.split(name) if word]
    if any(_secret_words.fullmatch(word) for word in words):
        return True
    # `long_prefill_token_threshold` is none, `hf_token` is.
    return bool(words) and (words[-1] == "token" or bool(_secret_pairs.search("_".join(words))))


def public_address(address: str) -> str:
    """The address without user, password and the parameters that sign it or hold keys; chained ones, too.

    Parameters that stay keep their order and form, so that a clean address comes out as it is.
    """
    address = _bad_port.sub("//", address)
    address = _user.sub(_without_user, address)
    address = _user_without_scheme.sub("", address)
    if "//" not in address:
        return address  # a path: what looks like a parameter in it is part of its name
    return _with_first_mark(_parameter.sub(_without_secret, address))


def public_value(value: Any, name: str = "") -> Any:
    """A value of JSON without what is secret in it, however deep: entries by their names, addresses by their form.

    Text that is itself a JSON object or list is looked into.
    """
    match value:
        case dict():
            return {
                key: public_value(item, key)
                for key, item in value.items()
                if not names_secret(unquote_plus(str(key)))
            }
        case list() | tuple():
            return [public_value(item, name) for item in value]
        case str():
            return _public_text(value)
        case _:
            return value


def without_secret_values(text: str, table: Mapping[str, object]) -> str:
    """A foreign message about a table, without the values that the public form of the table lacks."""
    public = public_value(dict(table))
    for key, value in table.items():
        if public.get(key) != value:
            for form in {str(value), repr(value)[1:-1] if isinstance(value, str) else repr(value)} - {""}:
                text = text.replace(form, "***")
    return text


def _public_text(text: str) -> str:
    if text.lstrip().startswith(("{", "[")):
        try:
            inside = json.loads(text)
        except ValueError:
            return public_address(text)
        cleaned = public_value(inside)
        return text if cleaned == inside else json.dumps(cleaned)
    return public_address(text) if "//" in text or "@" in text else text


def _without_user(found: re.Match[str]) -> str:
    user = found["user"]
    if found["scheme"].lower() in _container_schemes and ":" not in user and "@" not in user:
        return found[0]
    return found["start"]


def _without_secret(found: re.Match[str]) -> str:
    value = unquote_plus(found["value"])
    is_table = value.lstrip().startswith(("{", "["))
    if names_secret(unquote_plus(found["name"])) or (is_table and not _is_public_json(value)):
        return found["mark"]  # because what follows may have been joined by it
    return found[0]


def _is_public_json(text: str) -> bool:
    try:
        inside = json.loads(text)
    except ValueError:
        return False
    return bool(public_value(inside) == inside)


def _with_first_mark(address: str) -> str:
    """Put marks right where parameters were taken out: `?&a=1` is `?a=1`, and a mark at the end goes."""
    address = re.sub(r"([?#])[&;]+", r"\1", address)
    address = re.sub(r"[&;]{2,}", "&", address)
    address = re.sub(r"[&;]+(?=[?#]|$)|\?(?=#|$)", "", address)
    return address.removesuffix("#")
