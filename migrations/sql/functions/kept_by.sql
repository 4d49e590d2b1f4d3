-- Returns why a retention policy must not erase a thread: 'written' if its last message is not older than p_before,
-- 'held' or 'retained' if a hold or a retention forbids it, 'damaged' if the last message is not there, else NULL. The
-- caller has locked the head. A thread without messages is as old as its creation.
CREATE FUNCTION compaction_store.kept_by(p_head compaction_store.heads, p_before timestamptz) RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_last_at timestamptz;
    v_forbidding bigint[];
BEGIN
    IF p_head.last_seq = 0 THEN
        SELECT t.created_at INTO v_last_at FROM compaction_store.threads AS t WHERE t.thread_uid = p_head.thread_uid;
    ELSE
        SELECT m.created_at INTO v_last_at FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_head.thread_uid AND m.seq = p_head.last_seq;
    END IF;
    IF (v_last_at < p_before) IS NOT TRUE THEN
        RETURN CASE WHEN v_last_at IS NULL THEN 'damaged' ELSE 'written' END;
    END IF;
    v_forbidding := compaction_store.in_hold(p_head.thread_uid, p_head.last_pos);
    IF cardinality(v_forbidding) = 0 THEN
        RETURN NULL;
    END IF;
    RETURN CASE WHEN EXISTS (
        SELECT FROM compaction_store.events AS e
        WHERE e.thread_uid = p_head.thread_uid AND e.pos = ANY (v_forbidding) AND e.kind = 'hold'
    ) THEN 'held' ELSE 'retained' END;
END
$$;
