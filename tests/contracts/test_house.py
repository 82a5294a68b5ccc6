"""Tests of the repository as a whole: migrations, import layers, settings, names and codes of reasons."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from portal.settings.environment import SETTINGS
from portal.up.schema import migrations_of_later
from quota.models.fields import DNS_LABEL
from scheduling.core.vocabulary.reasons import ReasonCode
from scheduling.spec.field_errors import DNS_LABEL as LABEL_OF_SPECS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.django_db
def test_the_models_need_no_migration() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=1)


@pytest.mark.django_db
def test_a_home_that_a_later_version_migrated_is_known_by_that() -> None:
    applied = MigrationRecorder(connection)
    applied.ensure_schema()
    applied.record_applied("of_nobody_here", "0001_initial")
    assert migrations_of_later(connection) == []
    applied.record_applied("scheduling", "9999_of_tomorrow")
    assert migrations_of_later(connection) == ["scheduling.9999_of_tomorrow"]


def test_the_packages_import_only_whom_they_may() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_masters_load_the_compiled_kernels() -> None:
    """A web process and a Celery worker do not import Numba, which takes 45 MB in each process."""
    code = "import portal.asgi, portal.celery, sys; portal.celery.app.loader.import_default_modules(); "
    code += "assert portal.asgi.get_resolver().url_patterns; print('numba' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_libraries_of_sql_are_loaded_only_for_a_query() -> None:
    code = "import portal.asgi, portal.celery, sys; portal.celery.app.loader.import_default_modules(); "
    code += "assert portal.asgi.get_resolver().url_patterns; "
    code += "print(sorted({'duckdb', 'pyarrow', 'sqlglot'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_setting_is_explained_to_operators_and_no_other() -> None:
    told = (ROOT / "deploy" / "borg.env").read_text()
    explained = set(re.findall(r"^#?\s*([A-Z][A-Z_]+)=", told, re.MULTILINE))
    assert explained == set(SETTINGS)
    assert all(setting.about.endswith(".") for setting in SETTINGS.values())


def test_names_are_dns_labels_by_one_rule() -> None:
    assert rf"^{LABEL_OF_SPECS.pattern}\Z" == DNS_LABEL


def test_every_reason_is_documented() -> None:
    told = "".join(readme.read_text() for readme in (ROOT / "scheduling").rglob("README.md"))
    assert [code for code in ReasonCode if f"`{code}`" not in told] == []
