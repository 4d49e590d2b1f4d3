-- The messages of the call that stored an observed record with them: one of them tells of it, and where the record has
-- no span nobody can say which.
CREATE OR REPLACE FUNCTION compaction_store.told_by(p_thread_uid uuid, p_pos bigint) RETURNS int8range
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last bigint := compaction_store.seq_at(p_thread_uid, p_pos);
    v_first bigint;
BEGIN
    SELECT max(m.seq) INTO v_first FROM compaction_store.messages AS m
    WHERE m.thread_uid = p_thread_uid AND m.seq <= v_last AND m.key IS NOT NULL;
    RETURN int8range(v_first, v_last, '[]');
END
$$;
