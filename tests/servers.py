"""A team's servers on this machine, as docs/team.md has them: PostgreSQL, S3, MLflow, Prefect, each with a password.

`Servers(folder, without)` starts them on free ports of loopback, with all that they keep in `folder`; parts named in
`without` are left out: SQLite takes PostgreSQL's place, folders take S3's. A part that cannot be started raises
SystemExit that says why. Passwords are in environment variables and in a file of MLflow's that its user alone reads.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from pathlib import Path

from benchmarks.sandbox import free_port
from tandem.files import ROOT

MOTO = "moto[s3,server]==5.2.5"  # an S3 server; it takes any key, so it has S3's calls, not its rights
PARTS = ("postgresql", "s3")
FOREIGN = ("PREFECT", "MLFLOW", "DVC", "TANDEM", "GIT_", "AWS_", "PG")
SECONDS_TO_START = 240.0
HOST = "127.0.0.1"


class Servers:
    """`client`: the environment of who uses them; `secrets`: what may stand nowhere else."""

    def __init__(self, folder: Path, without: set[str]) -> None:
        self.folder, self.without = folder, without
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        self.secrets = {name: secrets.token_hex(12) for name in ("postgres", "s3", "mlflow", "flask", "prefect")}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.base = inherited | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(folder / "prefect-home"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_CLI_COLORS": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",  # all of it on one machine
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "DO_NOT_TRACK": "true",
            "DVC_NO_ANALYTICS": "true",
            "NO_PROXY": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",
        }
        self.client = dict(self.base)

    def __enter__(self) -> Servers:
        (self.folder / "logs").mkdir(parents=True)
        try:
            self.install_packages()
            if "postgresql" not in self.without:
                self.start_postgresql()
            if "s3" not in self.without:
                self.start_s3()
            self.start_mlflow()
            self.start_prefect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes.values()):
            stop_group(process)

    # The parts --------------------------------------------------------------------------------------------------------

    def install_packages(self) -> None:
        """What flows/team.txt has beyond requirements.txt, into a folder of its own."""
        locks = [read_lock(ROOT / name) for name in ("requirements.txt", "flows/team.txt")]
        more = self.folder / "packages.txt"
        more.write_text("".join(text for name, text in locks[1].items() if name not in locks[0]))
        target = self.folder / "packages"
        self.must("the packages of flows/team.txt", "uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
                  "--target", str(target), "-r", str(more))  # fmt: skip
        for environment in (self.base, self.client):
            environment["PYTHONPATH"] = str(target)

    def start_postgresql(self) -> None:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        program = shutil.which("postgres")
        binaries = folders[-1] if folders else Path(program).parent if program else None
        if binaries is None:
            raise SystemExit(
                "error: PostgreSQL is not installed; `apt install postgresql`, or say --without postgresql"
            )
        user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        data, port = self.folder / "postgresql", free_port()
        data.mkdir()
        password_file = data / "password"
        password_file.write_text(self.secrets["postgres"])
        if user:
            uid, gid = pwd.getpwnam(user)[2:4]
            for path in (data, password_file):
                os.chown(path, uid, gid)
        self.folder.chmod(0o755)
        password_file.chmod(0o600)
        self.must("PostgreSQL's data folder", str(binaries / "initdb"), "-D", str(data / "data"), "-U", "postgres",
                  "--auth=scram-sha-256", f"--pwfile={password_file}", user=user, cwd=data)  # fmt: skip
        password_file.unlink()
        command = [str(binaries / "postgres"), "-D", str(data / "data"), "-p", str(port), "-k", str(data), "-h", HOST]
        self.ports["postgresql"] = port
        self.base["PGPASSWORD"] = self.secrets["postgres"]
        psql = ["psql", "-h", HOST, "-p", str(port), "-U", "postgres", "-qc"]
        self.start("postgresql", command, self.base, user=user, cwd=data)
        self.wait_for("postgresql", lambda: self.run(*psql, "select 1").returncode == 0)
        for name in ("prefect", "mlflow", "mlflow_auth"):
            self.must(f"the database {name}", *psql, f"create database {name}")

    def start_s3(self) -> None:
        environment, port = self.folder / "moto", free_port()
        self.must("an environment for moto", "uv", "venv", "--quiet", str(environment))
        python = str(environment / "bin/python")
        self.must("moto", "uv", "pip", "install", "--quiet", "--python", python, MOTO)
        self.ports["s3"] = port
        self.start("s3", [str(environment / "bin/moto_server"), "-H", HOST, "-p", str(port)], self.base)
        self.wait_for("s3", lambda: answers(f"http://{HOST}:{port}/moto-api/"))
        keys = {
            "AWS_ACCESS_KEY_ID": "team",
            "AWS_SECRET_ACCESS_KEY": self.secrets["s3"],
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.base |= keys | {"AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}
        self.client |= keys | {"AWS_ENDPOINT_URL": f"http://{HOST}:{port}"}
        code = "import boto3; [boto3.client('s3').create_bucket(Bucket=name) for name in ('mlflow', 'dvc')]"
        self.must("S3's buckets", sys.executable, "-c", code)

    def database(self, name: str, driver: str = "postgresql") -> str:
        if "postgresql" in self.without:
            sqlite = "sqlite+aiosqlite" if "+" in driver else "sqlite"
            return f"{sqlite}:///{self.folder}/{name}.db"
        return f"{driver}://postgres@{HOST}:{self.ports['postgresql']}/{name}"  # the password: PGPASSWORD

    def start_mlflow(self) -> None:
        port = self.ports["mlflow"] = free_port()
        artifacts = f"{self.folder}/artifacts" if "s3" in self.without else "s3://mlflow"
        environment = self.base | {
            "MLFLOW_BACKEND_STORE_URI": self.database("mlflow"),
            "MLFLOW_ARTIFACTS_DESTINATION": artifacts,
        }
        command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
        settings = self.folder / "mlflow-auth.ini"
        settings.write_text(
            f"[mlflow]\ndefault_permission = EDIT\ndatabase_uri = {self.database('mlflow_auth')}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
            "auth_cache_ttl_seconds = 60\n"  # or each request hashes the password anew
        )
        environment |= {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_USERNAME": "admin",
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.secrets["mlflow"],
            "MLFLOW_FLASK_SERVER_SECRET_KEY": self.secrets["flask"],
        }
        self.client |= {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": self.secrets["mlflow"]}
        command += ["--app-name", "basic-auth"]
        self.client["MLFLOW_TRACKING_URI"] = f"http://{HOST}:{port}"
        self.start("mlflow", command, environment)
        self.wait_for("mlflow", lambda: answers(f"http://{HOST}:{port}/health"))

    def start_prefect(self) -> None:
        port = self.ports["prefect"] = free_port()
        environment = self.base | {
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database("prefect", "postgresql+asyncpg")
        }
        environment["PREFECT_UI_API_URL"] = f"http://{HOST}:{port}/api"  # or its pages ask at port 4200
        environment["PREFECT_SERVER_API_AUTH_STRING"] = f"admin:{self.secrets['prefect']}"
        self.client["PREFECT_API_AUTH_STRING"] = f"admin:{self.secrets['prefect']}"
        self.client["PREFECT_API_URL"] = f"http://{HOST}:{port}/api"
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
        self.start("prefect", command, environment)
        self.wait_for("prefect", lambda: answers(f"http://{HOST}:{port}/api/health", self.authorization()))

    def authorization(self) -> dict[str, str]:
        """Of Prefect's API, as a header."""
        return {"Authorization": f"Basic {as_header('admin', self.secrets['prefect'])}"}

    # Processes --------------------------------------------------------------------------------------------------------

    def start(self, name: str, command: list[str], environment: dict[str, str], **options: object) -> None:
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                **({"cwd": self.folder} | options),
            )  # fmt: skip

    def wait_for(self, name: str, condition: object) -> None:
        deadline = time.monotonic() + SECONDS_TO_START
        while not condition():  # type: ignore[operator]
            status = self.processes[name].poll()
            if status is not None or time.monotonic() > deadline:
                log = self.folder / "logs" / f"{name}.log"
                how = "was not ready in time" if status is None else f"ended with exit status {status}"
                raise SystemExit(f"error: {name} {how}: {log.read_text(errors='replace').strip()[-2000:]}")
            time.sleep(0.3)

    def run(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
        arguments = {"cwd": self.folder, "env": self.base} | options
        pipe = subprocess.PIPE
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, text=True, **arguments
        )

    def must(self, what: str, *command: str, **options: object) -> str:
        done = self.run(*command, **options)
        if done.returncode != 0:
            raise SystemExit(f"error: {what} could not be had: {done.stdout.strip()[-2000:]}")
        return done.stdout


def read_lock(path: Path) -> dict[str, str]:
    """Name -> lines of each package of a lock."""
    text = path.read_text(encoding="utf-8")
    return {match[1]: match[0] for match in re.finditer(r"^([\w.-]+)==.*?(?=^[\w]|\Z)", text, re.MULTILINE | re.DOTALL)}


def as_header(user: str, password: str) -> str:
    """Both as basic authentication sends them."""
    return b64encode(f"{user}:{password}".encode()).decode()


def answers(url: str, headers: dict[str, str] | None = None) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=5):
            return True
    except OSError:
        return False


def stop_group(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
