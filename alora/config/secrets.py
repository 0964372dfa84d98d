"""Secrets that a setting may hold are used as they are, and shown as ``***``; what may hold one is not saved."""

import ipaddress
import os
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from alora.errors import ConfigError

HIDDEN = "***"
KEY = "VLLM_API_KEY"  # the variable that vLLM's server reads its own key from
ADMIN_KEY = "ALORA_ADMIN_KEY"  # the same of whoever changes a guard's policies
# Each run of word characters and dashes is looked at once, from its start: linear in a text of nothing else.
_OPTION = r"(?<![\w-])(?>\w*-[\w-]*(?:api[-_]?key|hf[-_]token|auth[-_]token|passw(?:or)?d|secret)[\w-]*)"
_WORD = r"""(?:"(?!-)[^"]*"|'(?!-)[^']*'|(?!-)[^\s,\]"'\\]+)"""
_NEXT = r"""["']?(?:[ ]*,[ ]*|[ ]+|[^\S\n]*\n\s*-[ ]+)"""  # in a command line, a list, a YAML list
_VALUE = re.compile(rf"({_NEXT}|=){_WORD}")
_SECRETS = re.compile(rf"(?P<option>{_OPTION})(?P<values>={_WORD}|(?:{_NEXT}{_WORD})+)")
_SETTING = re.compile(
    r"((?:judge\.url|serving\.arguments|scorer|engine)=)(?!(?:vllm|auto|scorer|packed)$).+", re.DOTALL
)
_USER = re.compile(r"(:/{1,2})[^/\s]*@")
_QUERY = re.compile(r"([?&](?:[\w-]*(?:key|token|secret|password|signature|credential)|sig|code|auth|pwd|jwt)=)[^&\s]+")


def redacted(text: str) -> str:
    """``text`` (a command line, settings as YAML, a message) with the secrets in it hidden."""
    text = _SECRETS.sub(lambda found: found["option"] + _VALUE.sub(rf"\1{HIDDEN}", found["values"]), text)
    return _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))


def without_secret(word: str) -> str:
    """A word of alora's command line, without the value of a setting that may hold a secret in any form."""
    return _SETTING.sub(rf"\1{HIDDEN}", word)


def key_in(variable: str) -> str:
    """The key in an environment variable, "" where it has none; ConfigError for one that no HTTP header carries."""
    key = os.environ.get(variable, "")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(f"${variable} holds a character that no HTTP header carries; export it again")
    return key


def refuse_key(arguments: Iterable[str]) -> None:
    """ConfigError for an option, however short, that sets the key of vLLM's server."""
    if any(re.match(r"--api[-_]k", word) for word in arguments):
        raise ConfigError(f"serving.arguments sets the server's key, which any process can read there; export {KEY}")


def is_far(host: str | None) -> bool:
    """Whether ``host`` is, or may be, another machine than this one, or an address that others reach."""
    try:
        return not ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host != "localhost"


def open_to_all(host: str, has_key: bool) -> str | None:
    """A remark on a server that other machines reach and that asks for no key; None where it does not."""
    if not is_far(host) or has_key:
        return None
    return f"{host} takes requests from other machines, and anybody may ask: no key is set; export {KEY}"


def in_the_clear(url: str) -> str | None:
    """A remark on a URL that sends text, and a key, unencrypted over a network; None where it does not."""
    if urlsplit(url).scheme != "http" or not is_far(urlsplit(url).hostname):
        return None
    return f"{redacted(url)} is not encrypted: whoever is between reads the conversations and the key; use https://"
