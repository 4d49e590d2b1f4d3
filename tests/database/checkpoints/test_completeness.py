"""How the stored threads of a tenant compare with the newest checkpoint of a log."""

from __future__ import annotations

from uuid import UUID

from support.checkpoints import KEY
from support.faces import Face

import compaction_store as cs
from compaction_store.checkpoints.compare import completeness


def test_a_checkpoint_that_is_made_meanwhile_is_no_finding(checked: Face, log: cs.CheckpointLog) -> None:
    def read() -> set[UUID]:
        found = {thread.thread_uid for thread in checked.threads()}
        checked.append("d", {"n": 1}, raw=True)
        checked.audit.checkpoint(KEY, log)
        return found

    compared = completeness(log, "default", read)
    assert (compared.signed, compared.gone, compared.findings) == (3, (), ())
    assert completeness(log, "default", read).signed == 4
