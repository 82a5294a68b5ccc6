"""Fixtures for tests of packages: a certificate authority."""

from __future__ import annotations

import pytest

from tests.real.borglet.cell import Authority, make_authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))
