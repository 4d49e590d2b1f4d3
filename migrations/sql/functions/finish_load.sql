-- Moves a thread's head over the rows the loader copied, after recomputing their chain from the old head.
CREATE FUNCTION compaction_store.finish_load(p_thread_uid uuid, p_tenant text, p_until bigint) RETURNS bytea
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_head compaction_store.heads;
    v_count bigint;
    v_sound boolean;
    v_tokens bigint;
    v_last record;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    SELECT h.* INTO STRICT v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    -- Payloads are hashed before the window, so that it carries narrow rows only.
    SELECT count(*), sum(r.tokens), bool_and(coalesce(
        r.sound
        AND r.created_at >= r.before_at
        AND r.entry = compaction_store.entry(r.before, r.pos, r.seq, r.created_at, r.header, r.commitment),
        false
    )) INTO v_count, v_tokens, v_sound
    FROM (
        SELECT n.*,
            lag(n.entry, 1, v_head.head) OVER (ORDER BY n.seq) AS before,
            lag(n.created_at, 1, v_head.last_at) OVER (ORDER BY n.seq) AS before_at
        FROM (
            SELECT m.seq, m.pos, m.created_at, m.tokens, m.entry, m.commitment,
                compaction_store.message_header(
                    m.role, m.tokens, m.counter, m.key, m.call_size, m.receipt, m.meta_commitment
                ) AS header,
                m.tenant = p_tenant
                    AND m.pos - v_head.last_pos = m.seq - v_head.last_seq
                    AND m.redacted_pos IS NULL
                    AND octet_length(m.salt) = 16
                    AND m.commitment = compaction_store.commitment(m.salt, m.payload::text)
                    AND m.meta_commitment IS NOT DISTINCT FROM compaction_store.meta_commitment(m.salt, m.meta::text)
                    AS sound
            FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq > v_head.last_seq
            OFFSET 0
        ) AS n
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
