"""API keys: who may send requests, and which client a request comes from."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import Overloaded, Unauthorized, error_response
from ..settings import Settings

LINE = re.compile(r"(?=[\d.-]*[A-Za-z_])([\w.-]{1,64}):(\S+)((?:\s+\S+)*)", re.ASCII)
LIMIT = re.compile(r"(weight|max_requests)=([1-9]\d{0,5})", re.ASCII)
IPV6_NETWORK_BITS = 64  # an IPv6 client has a network of addresses


class BadKeys(ValueError):
    """The keys cannot be used. The message is one line, and contains none of them."""


@dataclass(frozen=True, slots=True)
class Key:
    """An API key, of which only the digest is kept. `name` says whose it is; the key of `--api-key`, which many may
    share, has none. At most `max_requests` are served at once, and they get turns in proportion to `weight`."""

    name: str
    digest: bytes
    weight: int = 1
    max_requests: int = sys.maxsize


class Keys:
    """The API keys of a server. Without any, requests need none."""

    def __init__(
        self, unnamed: str | None, path: Path | None, processes: int = 1, valid: Sequence[Key] | None = None
    ) -> None:
        """`path` is that of the named keys, which are read unless it is known which are `valid`. So many `processes`
        share what a key may have. Raises `BadKeys`."""
        self.processes = processes
        self.valid = read_keys(unnamed, path) if valid is None else valid
        self._unnamed = unnamed
        self._path = path

    @classmethod
    def of(cls, settings: Settings, processes: int = 1, valid: Sequence[Key] | None = None) -> Self:
        path = None if settings.api_key_file is None else Path(settings.api_key_file)
        return cls(settings.api_key, path, processes, valid)

    def __bool__(self) -> bool:
        return bool(self.valid)

    def find(self, given: bytes) -> Key | None:
        """The key that is `given`. All are compared, each in constant time."""
        digest = _digest(given)
        matches = [key for key in self.valid if hmac.compare_digest(key.digest, digest)]
        return matches[0] if matches else None

    def reload(self) -> None:
        """Read the file again. If it cannot be used, the keys stay as they are."""
        try:
            self.valid = read_keys(self._unnamed, self._path)
        except BadKeys as error:
            logging.getLogger(__name__).error("the API keys stay as they are: %s", error)
        else:
            logging.getLogger(__name__).info("%d API keys are valid now", len(self.valid))


def read_keys(unnamed: str | None, path: Path | None) -> list[Key]:
    """The key of `--api-key` and those of a file. Raises `BadKeys`."""
    keys = [] if unnamed is None else [Key("", _digest(unnamed.strip().encode()))]
    if path is None:
        return keys
    try:
        if path.exists() and not path.is_file():
            raise BadKeys(f"{path} is not a file")
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadKeys(f"{path} is not UTF-8") from None
    except OSError as error:
        raise BadKeys(f"--api-key-file: {path} cannot be read: {error.strerror or error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            key = _parsed(line.strip(), f"{path}:{number}")
            if any(key.name == other.name for other in keys):
                raise BadKeys(f"{path}:{number}: the name {key.name} is taken")
            if any(key.digest == other.digest for other in keys):
                raise BadKeys(f"{path}:{number}: the key of {key.name} is another client's too")
            keys.append(key)
    if len(keys) == (unnamed is not None):
        raise BadKeys(f"{path} has no key: a line is NAME:KEY")
    return keys


def _parsed(line: str, where: str) -> Key:
    found = LINE.fullmatch(line)
    if found is None:
        raise BadKeys(
            f"{where}: a line is NAME:KEY, and a name has up to 64 of A-Z a-z 0-9 _ . -, with a letter or _ in it"
        )
    limits = [LIMIT.fullmatch(limit) for limit in found[3].split()]
    given = {limit[1]: int(limit[2]) for limit in limits if limit is not None}
    if len(given) < len(limits):
        raise BadKeys(
            f"{where}: only weight=NUMBER and max_requests=NUMBER, from 1 to 999999 and once each,"
            f" may follow the key of {found[1]}"
        )
    return Key(found[1], _digest(found[2].encode()), **given)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class RequireKey:
    """Refuses requests without `Authorization: Bearer KEY` or `x-api-key: KEY`, except to `open_paths`, and more of one
    key at once than it may have. The others carry their `Key` in the state of their scope."""

    def __init__(self, app: ASGIApp, keys: Keys, open_paths: Collection[str]) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._served = Counter[str]()  # requests, by the name of their key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
            return
        key = next(filter(None, map(self._keys.find, _given(scope))), None)
        if key is None:
            await error_response(Unauthorized(), scope)(scope, receive, send)
            return
        scope.setdefault("state", {})["key"] = key
        if self._served[key.name] >= -(-key.max_requests // self._keys.processes):
            full = Overloaded(f"this key has as many requests at once as it may have: {key.max_requests}")
            await error_response(full, scope)(scope, receive, send)
        else:
            self._served[key.name] += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._served[key.name] -= 1


def _given(scope: Scope) -> Iterator[bytes]:
    """The keys that a request carries. Clients of OpenAI's API send a bearer token, many of Anthropic's `x-api-key`."""
    headers = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        yield token.strip()
    if b"x-api-key" in headers:
        yield headers[b"x-api-key"].strip()


def key_of(scope: Scope) -> Key | None:
    """The key of a request, if the server has keys."""
    key: Key | None = scope.get("state", {}).get("key")
    return key


def client_of(scope: Scope) -> str:
    """The name of the request's key, or else the address that it comes from."""
    key = key_of(scope)
    if key is not None and key.name:
        return key.name
    host = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return str(host)
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), IPV6_NETWORK_BITS), strict=False))
