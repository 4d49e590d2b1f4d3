COMMENT ON TABLE compaction_store.turns IS
    'One row for each thread that has a turn now or turns that wait for it. Not part of the history of a thread.';
COMMENT ON COLUMN compaction_store.turns.turn_id IS
    'The turn that has the thread; NULL if the first waiting turn may take the thread.';
COMMENT ON COLUMN compaction_store.turns.held_since IS
    'When the turn that has the thread began.';
COMMENT ON COLUMN compaction_store.turns.held_until IS
    'When the lease of the turn that has the thread ends, unless it is renewed.';
COMMENT ON COLUMN compaction_store.turns.tenant IS
    'The tenant that the thread belongs to.';
COMMENT ON COLUMN compaction_store.turns.thread_id IS
    'The name of the thread, which may not exist yet.';
COMMENT ON COLUMN compaction_store.turns.actor IS
    'The actor of the turn that has the thread, as the caller named it.';
COMMENT ON COLUMN compaction_store.turns.login IS
    'The database login that took the turn.';
COMMENT ON COLUMN compaction_store.turns.waiting IS
    'The turns that wait, in the order of their arrival.';
COMMENT ON COLUMN compaction_store.turns.waiting_until IS
    'For each waiting turn, when its place expires unless the turn asks again.';
