"""What the tests of schedules share."""

from pathlib import Path

import pytest
from tests.integration.engine.timetable import Timetable

from kapelle.store.database import Database


@pytest.fixture
def timetable(db: Database, tmp_path: Path) -> Timetable:
    return Timetable(db, tmp_path)
