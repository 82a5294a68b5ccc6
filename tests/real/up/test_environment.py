import re
from pathlib import Path

from portal.settings.environment import SETTINGS
from portal.up.environment import environment, ignored_settings, machine_environment
from portal.up.options import Options

_BORGLET_ENV = Path(__file__).parents[3] / "deploy" / "systemd" / "borglet.env"
_OPTIONS = Options.read({"BORG_HOME": "/srv/borg", "PORT": "8100", "BORG_ZONE": "example.org"})


def _of_a_server(**inherited: str) -> dict[str, str]:
    return environment(_OPTIONS, inherited, database_url="postgresql:///b", redis_url="unix:///r", secret_key="k" * 60)


def test_every_variable_that_is_set_is_a_known_setting() -> None:
    known = set(SETTINGS)
    assert {name for name in _of_a_server() if name.startswith("BORG_")} <= known


def test_an_operator_may_tune_but_not_redirect() -> None:
    env = _of_a_server(
        BORG_LOG_LEVEL="DEBUG", BORG_USAGE_KEEP_HOURS="3", BORG_DATABASE_URL="postgresql:///elsewhere", EDITOR="vi"
    )
    assert env["BORG_LOG_LEVEL"] == "DEBUG"
    assert env["BORG_USAGE_KEEP_HOURS"] == "3"
    assert env["BORG_DATABASE_URL"] == "postgresql:///b"
    assert env["BORG_PORTAL_URL"] == "http://127.0.0.1:8100"
    assert env["BORG_ZONE"] == "example.org"
    assert "EDITOR" not in env


def test_a_setting_that_does_nothing_is_reported() -> None:
    given = {"BORG_DNS_TLL": "9", "BORG_DNS_HOST": "::1", "BORG_DNS_TTL": "9", "BORG_DNS_PORT": "", "BORG_CELL": "dev"}
    assert list(ignored_settings(_OPTIONS, given)) == [
        "BORG_DNS_HOST='::1' has no effect: `make up` sets this setting to 127.0.0.1.",
        "BORG_DNS_TLL has no effect: there is no such setting; did you mean BORG_DNS_TTL?",
    ]


def test_whatever_is_settable_about_dns_is_so_for_make_up() -> None:
    ours = {"BORG_DNS_HOST", "BORG_DNS_PORT"}  # it listens on loopback, at `DNS_PORT`
    settings = {name for name in SETTINGS if name.startswith("BORG_DNS_")}
    env = _of_a_server(**dict.fromkeys(settings, "told"))
    assert {name for name in settings if env.get(name) == "told"} == settings - ours


def test_a_machine_learns_no_address_and_no_key_of_the_server() -> None:
    inherited = {"BORG_SECRET_KEY": "x", "BORG_DATABASE_URL": "y", "PATH": "/bin", "BORGLET_CAPACITY": "cpu=2"}
    env = machine_environment(_OPTIONS, inherited)
    assert {name for name in env if name.startswith("BORG_")} == {"BORG_HOME", "BORG_LOG_LEVEL"}
    assert env["PATH"] == "/bin"
    assert env["BORGLET_CAPACITY"] == "cpu=2"


def test_settings_of_a_borglet_reach_the_one_of_make_up() -> None:
    optional = set(re.findall(r"^#(BORGLET_\w+)=", _BORGLET_ENV.read_text(), re.MULTILINE))
    assert "BORGLET_TASK_USER" in optional
    env = machine_environment(_OPTIONS, dict.fromkeys(optional, "1"))
    assert optional - {"BORGLET_HOSTNAME"} <= set(env)  # the name is an option of `make up` itself
