import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from portal.up.home import LAYOUT, Home, HomeError, client_toml


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.prepare()
    return made


def test_a_home_is_closed_to_others_but_passable(home: Home) -> None:
    assert home.path.stat().st_mode & 0o777 == 0o711
    assert home.run.stat().st_mode & 0o777 == 0o700
    home.prepare()  # a second call keeps the home


def test_a_second_start_names_the_first(home: Home) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom portal.up.home import Home\n"
        "with Home(Path(sys.argv[1])).lock():\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    first = subprocess.Popen([sys.executable, "-c", code, home.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdin is not None
    assert first.stdout is not None
    with first.stdin, first.stdout:
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(HomeError, match=rf"in use by process {first.pid}\. Stop that process"), home.lock():
            pass
        first.kill()
        first.wait()
    with home.lock():  # a killed holder leaves no lock
        assert (home.run / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(HomeError, match=r"is not a BORG_HOME and is not empty \(it contains thesis.tex\)"):
        Home(tmp_path).prepare()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_place_that_can_not_hold_a_home_is_named(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(HomeError, match=f"^{file / below} cannot be used as BORG_HOME: Not a directory"):
        Home(file / below).prepare()
    with pytest.raises(HomeError, match=r"^/proc/home cannot be used as BORG_HOME: No such file or directory;"):
        Home(Path("/proc/home")).prepare()


def test_a_home_of_a_newer_version_is_refused(home: Home) -> None:
    (home.path / "layout").write_text(f"{LAYOUT + 1}\n")
    with pytest.raises(HomeError, match=f"has layout {LAYOUT + 1}, and this version supports at most {LAYOUT}"):
        home.prepare()


def test_secrets_are_made_once_private_and_merged(home: Home) -> None:
    key = home.secrets_read()["secret_key"]
    assert len(key) >= 50
    home.secrets_add({"users": {"admin": {"password": "p1", "token": "t1"}}})
    kept = home.secrets_add({"users": {"admin": {"password": None, "token": "t2"}, "demo": {"token": "d"}}})
    assert kept == {"secret_key": key, "users": {"admin": {"password": "p1", "token": "t2"}, "demo": {"token": "d"}}}
    assert home.secrets_read() == kept
    assert home.secrets.stat().st_mode & 0o777 == 0o600


def test_damaged_secrets_are_reported_not_replaced(home: Home) -> None:
    home.secrets.write_text("{")
    with pytest.raises(HomeError, match="is damaged"):
        home.secrets_read()
    assert home.secrets.read_text() == "{"


def test_client_toml_is_what_borgctl_reads() -> None:
    shared = {"url": "http://127.0.0.1:8000", "cell": "dev", "zone": "borg.internal", "dns": "127.0.0.1:5353"}
    text = client_toml(shared, {"admin": {"token": 'a"b'}, "demo": {"token": "t", "tenant": "demo"}})
    read = tomllib.loads(text)
    assert read["url"] == "http://127.0.0.1:8000"
    assert read["profiles"] == {"admin": {"token": 'a"b'}, "demo": {"token": "t", "tenant": "demo"}}
    assert read["default_profile"] == "demo"


def test_profiles_of_borgctl_login_outlive_a_start() -> None:
    shared = {"url": "u", "cell": "dev", "zone": "z", "dns": "d"}
    first = client_toml(shared, {"admin": {"token": "a1"}, "demo": {"token": "d1", "tenant": "demo"}})
    signed_in = first.replace('default_profile = "demo"', 'default_profile = "ann"')
    signed_in += '[profiles.ann]\ntoken = "borg_x"\ntenant = "ubar"\n'
    own = {"admin": {"token": "a2"}, "demo": {"token": "d2", "tenant": "demo"}}
    second = tomllib.loads(client_toml(shared, own, before=signed_in))
    assert second["default_profile"] == "ann"
    assert second["profiles"]["ann"] == {"token": "borg_x", "tenant": "ubar"}
    assert second["profiles"]["admin"]["token"] == "a2"
