-- Moves a thread's head over the rows the loader copied, after recomputing their chain from the old head.
CREATE FUNCTION compaction_store.finish_load(p_thread_uid uuid, p_tenant text, p_until bigint) RETURNS bytea
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_head compaction_store.heads;
    v_count bigint;
    v_sound boolean;
    v_tokens bigint;
    v_last record;
BEGIN
    PERFORM compaction_store.enter(p_tenant);
    SELECT h.* INTO STRICT v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    SELECT count(*), sum(r.tokens), bool_and(
        r.tenant = p_tenant
        AND r.pos - v_head.last_pos = r.seq - v_head.last_seq
        AND r.created_at >= r.before_at
        AND r.redacted_pos IS NULL
        AND r.commitment = compaction_store.commitment(r.salt, r.payload::text)
        AND r.meta_commitment IS NOT DISTINCT FROM compaction_store.meta_commitment(r.salt, r.meta::text)
        AND r.entry = compaction_store.entry(
            r.before, r.pos, r.seq, r.created_at,
            compaction_store.message_header(
                r.role, r.tokens, r.counter, r.key, r.call_size, r.receipt, r.meta_commitment
            ),
            r.commitment
        )
    ) INTO v_count, v_tokens, v_sound
    FROM (
        SELECT m.*,
            lag(m.entry, 1, v_head.head) OVER (ORDER BY m.seq) AS before,
            lag(m.created_at, 1, v_head.last_at) OVER (ORDER BY m.seq) AS before_at
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq > v_head.last_seq
    ) AS r;
    IF v_count IS DISTINCT FROM p_until - v_head.last_seq OR v_sound IS DISTINCT FROM true THEN
        RAISE EXCEPTION 'the loaded rows do not continue the chain' USING ERRCODE = 'CS010';
    END IF;
    SELECT m.pos, m.created_at, m.entry INTO STRICT v_last
    FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid AND m.seq = p_until;
    UPDATE compaction_store.heads AS h
    SET last_seq = p_until, last_pos = v_last.pos, last_at = v_last.created_at, head = v_last.entry,
        view_tokens = h.view_tokens + v_tokens
    WHERE h.thread_uid = p_thread_uid;
    RETURN v_last.entry;
END
$$;
