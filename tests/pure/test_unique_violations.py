"""A unique violation of the log's keys is damage to the thread; any other is a race, which a retry settles."""

from __future__ import annotations

import psycopg
import pytest

from compaction_store.errors import DatabaseUnavailable, ThreadDamaged
from compaction_store.postgres.calling import error_translation


@pytest.mark.parametrize(
    ("spread", "failure", "again"), [(True, ThreadDamaged, False), (False, DatabaseUnavailable, True)]
)
def test_one_that_a_clusters_node_reports_without_its_key_is_damage(
    spread: bool, failure: type[Exception], again: bool
) -> None:
    verdict = error_translation.judge(psycopg.errors.UniqueViolation(), " (thread 't')", has_nodes=spread)
    assert type(verdict.failure) is failure
    assert (verdict.again, verdict.unknown) == (again, False)
    assert "thread 't'" in str(verdict.failure)
