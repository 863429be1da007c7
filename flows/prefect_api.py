"""A small client of Prefect's REST API, for processes that cannot afford `import prefect` (1.1 s each).

Goes in: the settings Prefect itself would use (environment, .env, prefect.toml, pyproject.toml, active profile).
Comes out: flow runs, states and logs. Paths and bodies: https://docs.prefect.io/v3/api-ref/rest-api, checked against
Prefect 3.8.8. Standard library only, imported when first needed: always-run stages import this module.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LOCAL_PROFILE = "http://127.0.0.1:4200/api"  # what Prefect's built-in profile `local` stands for
SETTINGS = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_API_SSL_CERT_FILE")

UNFINISHED = ["PENDING", "RUNNING", "CANCELLING"]  # states of a flow run that has started and not ended


class ApiError(Exception):
    """The API refused, did not answer in time, or answered with an error; the message says which."""


class ApiLost(ApiError):
    """Nobody answered, or not in time."""


def configured() -> dict[str, str] | None:
    """The settings of the Prefect API in use, None without PREFECT_API_URL. In Prefect's own order of precedence."""
    settings = {name: os.environ[name] for name in SETTINGS if os.environ.get(name)}
    if "PREFECT_API_URL" not in settings:
        for source in (_dotenv, _toml, _profile):
            settings = {**source(), **settings}
    return settings if settings.get("PREFECT_API_URL") else None


def _read(path: str, word: bytes) -> bytes:
    """The file's content where it mentions `word`, nothing otherwise: importing tomllib costs more than all this."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return b""
    return content if word in content else b""


def _dotenv() -> dict[str, str]:
    pairs = (line.partition("=") for line in _read(".env", b"PREFECT_API_").decode().splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, _, value in pairs if key.strip() in SETTINGS}


def _toml() -> dict[str, str]:
    found: dict[str, str] = {}
    for path, word, keys in (
        ("pyproject.toml", b"tool.prefect", ("tool", "prefect", "api")),
        ("prefect.toml", b"api", ("api",)),
    ):
        if content := _read(path, word):
            import tomllib

            table = tomllib.loads(content.decode())
            for key in keys:
                table = table.get(key, {})
            found |= {f"PREFECT_API_{key.upper()}": str(value) for key, value in table.items()}
    return {key: value for key, value in found.items() if key in SETTINGS}


def _profile() -> dict[str, str]:
    home = os.environ.get("PREFECT_HOME") or os.path.expanduser("~/.prefect")
    path = os.environ.get("PREFECT_PROFILES_PATH") or os.path.join(home, "profiles.toml")
    content = _read(path, b"profiles")
    if not content:
        return {}
    import tomllib

    try:
        table = tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError:
        return {}  # as Prefect does
    name = os.environ.get("PREFECT_PROFILE") or table.get("active")
    profiles = {"local": {"PREFECT_API_URL": LOCAL_PROFILE}, **table.get("profiles", {})}
    return {key: str(value) for key, value in profiles.get(name, {}).items() if key in SETTINGS}


def without_password(url: str) -> str:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class PrefectApi:
    """One kept-alive connection. Not thread-safe: one thread owns it."""

    def __init__(self, settings: dict[str, str]):
        from http.client import HTTPConnection, HTTPSConnection
        from urllib.parse import unquote, urlsplit

        self.url = without_password(settings["PREFECT_API_URL"])
        parts = urlsplit(settings["PREFECT_API_URL"])
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ApiError(f"{self.url!r} is no http:// or https:// address")
        self.path = parts.path.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        basic = settings.get("PREFECT_API_AUTH_STRING")
        if parts.username and not basic:
            basic = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        if basic:
            from base64 import b64encode

            self.headers["Authorization"] = "Basic " + b64encode(basic.encode()).decode()
        elif key := settings.get("PREFECT_API_KEY"):
            self.headers["Authorization"] = f"Bearer {key}"
        if parts.scheme == "https":
            import ssl

            context = ssl.create_default_context(cafile=settings.get("PREFECT_API_SSL_CERT_FILE"))
            self.connection: HTTPConnection = HTTPSConnection(parts.hostname, parts.port, context=context)
        else:
            self.connection = HTTPConnection(parts.hostname, parts.port)

    def call(self, method: str, path: str, body: object = None, timeout: float = 10.0) -> Any:
        """The decoded answer. Raises ApiError. A server that says it is busy (sqlite locked) is asked a few times more."""
        import json
        import time

        data = None if body is None else json.dumps(body).encode()
        status, answer = self._exchange(method, path, data, timeout)
        for pause in (0.1, 0.3, 0.6, 1.0):
            if status not in (429, 502, 503):
                break
            time.sleep(pause)
            status, answer = self._exchange(method, path, data, timeout)
        if status >= 300:
            raise ApiError(f"{method} {path} answered {status}: {answer[:300].decode(errors='replace')}")
        try:
            return json.loads(answer) if answer else None
        except ValueError as error:
            raise ApiError(f"{method} {path} answered something that is not JSON: is this a Prefect API?") from error

    def _exchange(self, method: str, path: str, data: bytes | None, timeout: float) -> tuple[int, bytes]:
        """(status, body). Raises ApiLost."""
        from http.client import HTTPException

        connection = self.connection
        reused = connection.sock is not None
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(method, self.path + path, data, self.headers)
            response = connection.getresponse()
            return response.status, response.read()
        except TimeoutError as error:
            connection.close()
            raise ApiLost(f"no answer within {timeout:g} s") from error
        except (OSError, HTTPException) as error:
            connection.close()
            if reused:  # the server closes a connection idle for 5 s
                return self._exchange(method, path, data, timeout)
            raise ApiLost(getattr(error, "strerror", None) or str(error) or type(error).__name__) from error

    def check(self, timeout: float = 2.5) -> None:
        """Raise ApiError unless a Prefect API answers. It needs no database there, so a busy server answers too."""
        if self.call("GET", "/health", timeout=timeout) is not True:
            raise ApiError("GET /health did not answer `true`: is this a Prefect API?")

    def create_flow_run(
        self, flow: str, name: str, parameters: Mapping[str, object], tags: list[str], parent: str | None
    ) -> str:
        """The id of a new flow run, Running. It hangs on a task run of its parent, whose state the server mirrors."""
        flow_id = self.call("POST", "/flows/", {"name": flow})["id"]
        parent_task = self.create_task_run(parent, flow, name) if parent else None
        run = {"flow_id": flow_id, "name": name, "parameters": parameters, "tags": tags, "state": state("RUNNING")}
        return self.call("POST", "/flow_runs/", {**run, "parent_task_run_id": parent_task})["id"]

    def create_task_run(
        self, flow_run: str, key: str, name: str, state: dict[str, str] | None = None, timeout: float = 10.0
    ) -> str:
        body = {"flow_run_id": flow_run, "task_key": key, "name": name, "dynamic_key": f"{name}-{os.urandom(6).hex()}"}
        return self.call("POST", "/task_runs/", {**body, "state": state} if state else body, timeout)["id"]

    def set_state(self, flow_run: str, state: dict[str, str], timeout: float = 3.0) -> None:
        self.call("POST", f"/flow_runs/{flow_run}/set_state", {"state": state, "force": True}, timeout)

    def children(self, flow_run: str, kinds: list[str], timeout: float = 5.0) -> list[str]:
        """Ids of the flow runs below this one that are in a state of one of these types."""
        wanted = {"parent_flow_run_id": {"any_": [flow_run]}, "state": {"type": {"any_": kinds}}}
        return [run["id"] for run in self.call("POST", "/flow_runs/filter", {"flow_runs": wanted}, timeout)]

    def write_logs(self, records: list[dict[str, object]], timeout: float = 3.0) -> None:
        self.call("POST", "/logs/", records, timeout)


def state(kind: str, message: str = "", name: str = "") -> dict[str, str]:
    """`kind`: COMPLETED, FAILED, CRASHED, CANCELLED or RUNNING; `name`: what the UI shows instead, such as Cached."""
    return {"type": kind, "name": name or kind.capitalize(), "message": message}
