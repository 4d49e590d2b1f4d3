-- The messages of the call that stored an observed record with them: one of them tells of it, and where the record has
-- no span nobody can say which.
CREATE FUNCTION compaction_store.told_by(p_thread_uid uuid, p_pos bigint) RETURNS int8range
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.int8range(
        (
            SELECT max(m.seq) FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq <= l.seq AND m.key IS NOT NULL
        ),
        l.seq, '[]'
    )
    FROM (SELECT compaction_store.seq_at(p_thread_uid, p_pos) AS seq) AS l
$$;
