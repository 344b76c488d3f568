"""docker-compose.yml without a container engine: its schema, what it refers to, and what it must never give to whom.

`problems_of` holds the checks. The real file must show none; each planted fault must be named, so that a check that
stopped looking would be seen.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.settings import Settings

REPOSITORY = Path(__file__).resolve().parent.parent
COMPOSE_TEXT = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
ENV_EXAMPLE = (REPOSITORY / ".env.example").read_text(encoding="utf-8")

WORKERS = ("worker-cpu", "worker-gpu")
OWN_SERVICES = ("api", "migrate", *WORKERS)
OPS = ("prometheus", "grafana")
PUBLISHED = ("api", "grafana")  # each on loopback only
LLM_KEY = "kernelwright_llm_api_key"
SECRET_IN_A_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|API_KEY|DATABASE_URL|BROKER_URL")

Compose = dict[str, Any]


def compose() -> Compose:
    """The file, parsed, its YAML merges resolved."""
    parsed = yaml.safe_load(COMPOSE_TEXT)
    assert isinstance(parsed, dict)
    # PyYAML shares what an anchor names; a fault planted in one service must not spread to the others
    return {key: copy.deepcopy(value) for key, value in parsed.items()}


def named_volume(entry: Any) -> str:
    """The source of a volume entry, in its short or long form."""
    return str(entry["source"]) if isinstance(entry, dict) else str(entry).split(":")[0]


def network_names(service: Compose) -> set[str]:
    """Names of the networks of a service, which may be a list or a mapping."""
    return set(service.get("networks", []))


def problems_of(document: Compose, env_example: str = ENV_EXAMPLE) -> list[str]:
    """Everything that is wrong with a compose file, in words."""
    services = document["services"]
    return [
        *_dangling_references(document),
        *_missing_files(document),
        *_conditions_that_never_come_true(services),
        *_variables(document, env_example),
        *_exposure(document),
        *(problem for name in (*OWN_SERVICES, *OPS) for problem in _hardening(name, services.get(name, {}))),
        *_ops(services),
        *_gpu(services),
    ]


def _dangling_references(document: Compose) -> Iterator[str]:
    services = document["services"]
    used: dict[str, set[str]] = {"networks": set(), "volumes": set(), "secrets": set(), "configs": set()}
    for name, service in services.items():
        for target in service.get("depends_on", {}):
            if target not in services:
                yield f"{name} depends on {target}, which does not exist"
        used["networks"] |= network_names(service)
        used["volumes"] |= {named_volume(entry) for entry in service.get("volumes", [])}
        used["secrets"] |= set(service.get("secrets", []))
        used["configs"] |= {entry["source"] for entry in service.get("configs", [])}
    for section, names in used.items():
        declared = set(document.get(section, {}))
        yield from (f"{section}: {name} is used and not declared" for name in sorted(names - declared))
        yield from (f"{section}: {name} is declared and not used" for name in sorted(declared - names))


def _missing_files(document: Compose) -> Iterator[str]:
    for name, entry in document.get("configs", {}).items():
        if not (REPOSITORY / entry["file"]).is_file():
            yield f"configs: {name} is the file {entry['file']}, which does not exist"


def _conditions_that_never_come_true(services: Compose) -> Iterator[str]:
    for name, service in services.items():
        for target, how in service.get("depends_on", {}).items():
            other = services.get(target, {})
            if how["condition"] == "service_healthy" and "healthcheck" not in other:
                yield f"{name} waits for {target} to be healthy, which has no health check"
            if how["condition"] == "service_completed_successfully" and other.get("restart") != "no":
                yield f"{name} waits for {target} to end, which restarts"


def _variables(document: Compose, env_example: str) -> Iterator[str]:
    text = yaml.safe_dump(document)
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    offered = set(re.findall(r"^(\w+)=", env_example, flags=re.MULTILINE))
    yield from (f"variable {name} is missing in .env.example" for name in sorted(used - offered))
    yield from (f"variable {name} of .env.example is used nowhere" for name in sorted(offered - used))
    known = {f"KERNELWRIGHT_{field.upper()}" for field in Settings.model_fields}
    fields = set(known)
    for name in OWN_SERVICES:
        given = document["services"].get(name, {}).get("environment", {})
        yield from (f"{name}: the service knows no setting {key}" for key in sorted(set(given) - known))
        # what is the same in every deployment of this file, such as a path inside the container
        fields -= {key for key, value in given.items() if "${" not in str(value)}
    secrets = {name.upper() for name in document["secrets"]}
    yield from (
        f"setting {name} is neither in .env.example nor a secret"
        for name in sorted(fields - offered - secrets)
    )


def _exposure(document: Compose) -> Iterator[str]:
    services = document["services"]
    for inner in ("back", "ops"):
        if not document["networks"].get(inner, {}).get("internal"):
            yield f"the network {inner} is not internal"
    if network_names(services.get("prometheus", {})) != {"ops"}:
        yield "prometheus is on a network other than ops"
    for name in ("db", "redis"):
        if network_names(services.get(name, {})) != {"back"}:
            yield f"{name} is on a network other than back"
    for name, service in services.items():
        for key in ("privileged", "network_mode", "pid", "ipc", "userns_mode", "cap_add", "devices"):
            if key in service:
                yield f"{name} sets {key}"
        for port in service.get("ports", []):
            if name not in PUBLISHED:
                yield f"{name} publishes a port"
            if not str(port).startswith("127.0.0.1:"):
                yield f"{name} publishes {port} beyond loopback"
        for entry in service.get("volumes", []):
            if "/" in named_volume(entry):
                yield f"{name} mounts {named_volume(entry)} of the host"
        for key in service.get("environment", {}):
            if SECRET_IN_A_NAME.search(key) and not key.endswith("_FILE"):
                yield f"{name} gets the secret {key} through its environment"
        if LLM_KEY in service.get("secrets", []) and name not in WORKERS:
            yield f"{name} gets the LLM key"
        if "egress" in network_names(service) and name not in WORKERS:
            yield f"{name} can reach the outside"


def _hardening(name: str, service: Compose) -> Iterator[str]:
    if service.get("cap_drop") != ["ALL"]:
        yield f"{name} keeps capabilities"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield f"{name} may gain privileges"
    if not service.get("read_only"):
        yield f"{name} has a writable root"
    if not service.get("init"):
        yield f"{name} has nobody to collect dead processes"
    if name in WORKERS and not {"mem_limit", "pids_limit", "shm_size", "stop_grace_period"} <= set(service):
        yield f"{name} lacks a limit"


def _ops(services: Compose) -> Iterator[str]:
    for name in OPS:
        if services.get(name, {}).get("profiles") != ["ops"]:
            yield f"{name} runs outside of the profile ops"
        if "back" in network_names(services.get(name, {})):
            yield f"{name} reaches the database"
    hosts = services["api"]["environment"]["KERNELWRIGHT_ALLOWED_HOSTS"]
    if '"api"' not in hosts:
        yield "the API does not answer to the name by which Prometheus calls it"
    if "ops" not in network_names(services["api"]):
        yield "Prometheus does not reach the API"
    if "--wait-for-key" not in services["api"]["command"]:
        yield "the API does not start before there is a key, which is made in its container"
    scraped = yaml.safe_load((REPOSITORY / "deploy/prometheus.yml").read_text(encoding="utf-8"))
    shown = Path(scraped["scrape_configs"][0]["authorization"]["credentials_file"])
    for name, service in services.items():
        if (shown.name in service.get("secrets", [])) != (name == "prometheus"):
            yield f"{name} is the wrong one to have, or to lack, the key for metrics"


def _gpu(services: Compose) -> Iterator[str]:
    for name, service in services.items():
        reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        if reserved and service.get("profiles") != ["gpu"]:
            yield f"{name} takes a GPU outside of the profile gpu"
        for device in reserved:
            if ("device_ids" in device) == ("count" in device):
                yield f"{name} must name its GPU by device_ids or by count, not by both or neither"
            if "gpu" not in device.get("capabilities", []):
                yield f"{name} reserves a device that is no GPU"
    if not services.get("worker-gpu", {}).get("deploy"):
        yield "worker-gpu reserves no GPU"


def validate_schema(path: Path) -> subprocess.CompletedProcess[str]:
    """Check a file against the compose schema that check-jsonschema carries; no network is needed."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_file_fits_the_compose_schema() -> None:
    result = validate_schema(REPOSITORY / "docker-compose.yml")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("healthcheck:", "healthchek:"),
        ("condition: service_healthy", "condition: service_is_healthy"),
        ("capabilities: [gpu]", "capabilties: [gpu]"),
    ],
)
def test_schema_check_sees_a_misspelling(tmp_path: Path, right: str, wrong: str) -> None:
    assert right in COMPOSE_TEXT
    path = tmp_path / "docker-compose.yml"
    path.write_text(COMPOSE_TEXT.replace(right, wrong), encoding="utf-8")
    assert validate_schema(path).returncode == 1


def test_nothing_is_wrong_with_the_file() -> None:
    assert problems_of(compose()) == []


def _change(path: str, value: Any) -> Callable[[Compose], None]:
    """A fault: set the value at a path such as `services.api.read_only`."""

    def plant(document: Compose) -> None:
        *parents, last = path.split(".")
        place = document
        for key in parents:
            place = place[key]
        place[last] = value

    return plant


def _remove(path: str) -> Callable[[Compose], None]:
    """A fault: remove what is at a path."""

    def plant(document: Compose) -> None:
        *parents, last = path.split(".")
        place = document
        for key in parents:
            place = place[key]
        del place[last]

    return plant


def _append(path: str, value: Any) -> Callable[[Compose], None]:
    """A fault: append to the list at a path, which is made if there is none."""

    def plant(document: Compose) -> None:
        *parents, last = path.split(".")
        place = document
        for key in parents:
            place = place[key]
        place.setdefault(last, []).append(value)

    return plant


GPU_DEVICE = {"driver": "nvidia", "count": 1, "device_ids": ["0"], "capabilities": ["gpu"]}
GPU_RESERVATION = {"resources": {"reservations": {"devices": [GPU_DEVICE]}}}
FAULTS: dict[str, tuple[Callable[[Compose], None], str]] = {
    "unknown dependency": (
        _change("services.api.depends_on.queue", {"condition": "service_started"}),
        "api depends on queue, which does not exist",
    ),
    "unknown network": (_append("services.db.networks", "side"), "networks: side is used and not declared"),
    "unknown config": (
        _append("services.grafana.configs", {"source": "theme", "target": "/theme"}),
        "configs: theme is used and not declared",
    ),
    "config without file": (
        _change("configs.alerts.file", "./deploy/alarms.yml"),
        "configs: alerts is the file ./deploy/alarms.yml, which does not exist",
    ),
    "metrics with the database": (
        _append("services.prometheus.networks", "back"),
        "prometheus reaches the database",
    ),
    "metrics by default": (_remove("services.grafana.profiles"), "grafana runs outside of the profile ops"),
    "dashboard outside": (
        _change("services.grafana.ports", ["3000:3000"]),
        "grafana publishes 3000:3000 beyond loopback",
    ),
    "open ops network": (_remove("networks.ops.internal"), "the network ops is not internal"),
    "metrics refused": (
        _change("services.api.environment.KERNELWRIGHT_ALLOWED_HOSTS", '["localhost"]'),
        "the API does not answer to the name by which Prometheus calls it",
    ),
    "unknown volume": (
        _append("services.db.volumes", "more:/more"),
        "volumes: more is used and not declared",
    ),
    "unknown secret": (_append("services.api.secrets", "pin"), "secrets: pin is used and not declared"),
    "unused volume": (_change("volumes.old", {}), "volumes: old is declared and not used"),
    "no health check": (
        _remove("services.redis.healthcheck"),
        "api waits for redis to be healthy, which has no health check",
    ),
    "restarting migration": (
        _change("services.migrate.restart", "always"),
        "api waits for migrate to end, which restarts",
    ),
    "variable without example": (
        _change("services.api.mem_limit", "${KERNELWRIGHT_API_MEMORY:?}"),
        "variable KERNELWRIGHT_API_MEMORY is missing in .env.example",
    ),
    "unknown setting": (
        _change("services.api.environment.KERNELWRIGHT_MAX_BODY", "1"),
        "api: the service knows no setting KERNELWRIGHT_MAX_BODY",
    ),
    "open back network": (_remove("networks.back.internal"), "the network back is not internal"),
    "database outside": (
        _append("services.db.networks", "egress"),
        "db is on a network other than back",
    ),
    "published worker": (
        _change("services.worker-cpu.ports", ["127.0.0.1:9000:9000"]),
        "worker-cpu publishes a port",
    ),
    "published to everybody": (
        _change("services.api.ports", ["8000:8000"]),
        "api publishes 8000:8000 beyond loopback",
    ),
    "docker socket": (
        _append("services.worker-cpu.volumes", "/var/run/docker.sock:/var/run/docker.sock"),
        "worker-cpu mounts /var/run/docker.sock of the host",
    ),
    "privileged": (_change("services.worker-gpu.privileged", True), "worker-gpu sets privileged"),
    "added capability": (
        _change("services.worker-cpu.cap_add", ["SYS_ADMIN"]),
        "worker-cpu sets cap_add",
    ),
    "key in the environment": (
        _change("services.worker-cpu.environment.KERNELWRIGHT_LLM_API_KEY", "x"),
        "worker-cpu gets the secret KERNELWRIGHT_LLM_API_KEY through its environment",
    ),
    "API with the LLM key": (_append("services.api.secrets", LLM_KEY), "api gets the LLM key"),
    "API with a way out": (_append("services.api.networks", "egress"), "api can reach the outside"),
    "capabilities kept": (_remove("services.worker-cpu.cap_drop"), "worker-cpu keeps capabilities"),
    "privileges gained": (_remove("services.api.security_opt"), "api may gain privileges"),
    "writable root": (_change("services.worker-gpu.read_only", False), "worker-gpu has a writable root"),
    "no init": (_remove("services.worker-cpu.init"), "worker-cpu has nobody to collect dead processes"),
    "no process limit": (_remove("services.worker-cpu.pids_limit"), "worker-cpu lacks a limit"),
    "API that waits for nobody": (
        _change("services.api.command", ["kernelwright", "serve", "--host", "0.0.0.0"]),
        "the API does not start before there is a key, which is made in its container",
    ),
    "API out of reach": (
        _change("services.api.networks", ["front", "back"]),
        "Prometheus does not reach the API",
    ),
    "Prometheus without its key": (
        _remove("services.prometheus.secrets"),
        "prometheus is the wrong one to have, or to lack, the key for metrics",
    ),
    "worker with the key for metrics": (
        _append("services.worker-cpu.secrets", "metrics_key"),
        "worker-cpu is the wrong one to have, or to lack, the key for metrics",
    ),
    "GPU by default": (
        _change("services.worker-cpu.deploy", GPU_RESERVATION),
        "worker-cpu takes a GPU outside of the profile gpu",
    ),
    "GPU named twice": (
        _change("services.worker-gpu.deploy", GPU_RESERVATION),
        "worker-gpu must name its GPU by device_ids or by count, not by both or neither",
    ),
    "no GPU": (_remove("services.worker-gpu.deploy"), "worker-gpu reserves no GPU"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_named(fault: str) -> None:
    plant, expected = FAULTS[fault]
    document = compose()
    plant(document)
    assert expected in problems_of(document)


def test_unused_variable_of_the_example_is_named() -> None:
    found = problems_of(compose(), ENV_EXAMPLE + "KERNELWRIGHT_OLD=1\n")
    assert found == ["variable KERNELWRIGHT_OLD of .env.example is used nowhere"]


def test_setting_that_a_deployer_cannot_find_is_named() -> None:
    without = ENV_EXAMPLE.replace("KERNELWRIGHT_STREAMS_PER_KEY=600\n", "")
    document = compose()
    del document["services"]["api"]["environment"]["KERNELWRIGHT_STREAMS_PER_KEY"]
    assert problems_of(document, without) == [
        "setting KERNELWRIGHT_STREAMS_PER_KEY is neither in .env.example nor a secret"
    ]


def test_commands_exist() -> None:
    services = compose()["services"]
    alembic = services["migrate"]["command"]
    assert (REPOSITORY / alembic[alembic.index("-c") + 1]).is_file()
    devices = {services[name]["environment"]["KERNELWRIGHT_DEVICE"] for name in WORKERS}
    # The worker takes its queue from its device.
    assert devices == {"cpu", "cuda"}
    assert all(services[name]["command"] == ["kernelwright", "worker"] for name in WORKERS)

    from services.worker.app import app

    assert app.main == "kernelwright"
    served = services["api"]["command"]
    program = "import sys; from services.cli import main; sys.exit(main())"
    helped = subprocess.run(
        [sys.executable, "-c", program, "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PATH": "/usr/bin:/bin"},
    )
    for option in (word for word in served if word.startswith("--")):
        assert option in helped.stdout


def test_image_is_built_from_what_exists() -> None:
    dockerfile = (REPOSITORY / "deploy/Dockerfile").read_text(encoding="utf-8")
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [
        source
        for line in dockerfile.splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    ]
    assert "services" in sources
    for source in sources:
        assert (REPOSITORY / source).exists(), f"{source} is copied and does not exist"
        assert f"!{source}" in ignored, f"{source} is copied and left out of the build context"
    user = [line.split()[1] for line in dockerfile.splitlines() if line.startswith("USER ")]
    assert user
    assert user[-1] not in ("root", "0")
