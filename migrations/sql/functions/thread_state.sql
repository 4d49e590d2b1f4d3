-- Returns the state of a thread for a verifier. Times are in microseconds, or NULL if infinite. seq_at, number_at and
-- entry_at are the values at p_pos, from which a verification can continue. It usually is near the end, so the events after
-- it are counted, and not those before it.
CREATE FUNCTION compaction_store.thread_state(p_thread_uid uuid, p_tenant text, p_thread_id text, p_pos bigint)
RETURNS TABLE (
    thread_uid uuid, thread_id text, name_salt bytea, name_commitment bytea, is_bare boolean, created_microseconds bigint, last_seq bigint, last_number bigint, last_pos bigint,
    last_microseconds bigint, head bytea, erased_pos bigint, seq_at bigint, number_at bigint, entry_at bytea,
    metadata text, hidden_seq bigint, is_log boolean, active_microseconds bigint, subject text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
-- If only disabled plans are possible, their nominal cost is so high that Postgres would start the JIT compiler.
SET jit = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_seq bigint;
    v_number bigint;
    v_entry bytea;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    v_number := compaction_store.number_at(p_thread_uid, p_pos);
    SELECT p_pos - v_number - (h.last_pos - h.last_seq - h.last_number) + (
        SELECT count(*) FROM compaction_store.events AS e
        WHERE e.thread_uid = p_thread_uid AND e.pos > p_pos AND e.pos <= h.last_pos
    ) INTO v_seq
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    v_entry := compaction_store.entry_at(p_thread_uid, p_pos, v_seq);
    RETURN QUERY
        SELECT t.thread_uid, t.thread_id, t.salt, t.commitment, t.metadata::text = '{}' AND h.subject IS NULL, compaction_store.microseconds(t.created_at), h.last_seq,
            h.last_number, h.last_pos, compaction_store.microseconds(h.last_at), h.head, h.erased_pos, v_seq,
            v_number,
            v_entry,
            -- Metadata may have 8,192 bytes, so this is enough to see that it has too many.
            left(t.metadata::text, 8193), h.hidden_seq, h.is_log, compaction_store.microseconds(h.active_at), h.subject
        FROM compaction_store.threads AS t
        JOIN compaction_store.heads AS h ON h.thread_uid = t.thread_uid
        WHERE t.thread_uid = p_thread_uid AND t.tenant = p_tenant AND h.tenant = p_tenant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
END
$$;
