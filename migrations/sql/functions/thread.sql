-- Returns a thread's counters and metadata, even if the thread is hidden. In a hidden thread, hidden_seq equals
-- last_seq.
CREATE FUNCTION compaction_store.thread(p_thread_uid uuid, p_tenant text, p_thread_id text)
RETURNS TABLE (
    thread_id text, metadata text, created_at timestamptz, last_seq bigint, last_number bigint, last_pos bigint,
    view_tokens bigint, last_at timestamptz, head bytea, erased_pos bigint, thread_uid uuid,
    hidden_seq bigint, unknown_pos bigint, last_message_at timestamptz,
    subject text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    RETURN QUERY
        SELECT t.thread_id, t.metadata::text, t.created_at, h.last_seq, h.last_number, h.last_pos, h.view_tokens,
            h.last_at, h.head, h.erased_pos, h.thread_uid, h.hidden_seq,
            -- These conditions must be the same as in refuse_unknown.
            least(
                (
                    SELECT min(c.pos) FROM compaction_store.compactions AS c
                    WHERE c.thread_uid = p_thread_uid AND c.number + 0 <= h.last_number AND c.outcome = 'applied'
                        AND c.kind NOT IN ('summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption')
                ),
                (
                    SELECT min(e.pos) FROM compaction_store.events AS e
                    WHERE e.thread_uid = p_thread_uid AND e.pos <= h.last_pos AND e.critical
                        AND e.kind NOT IN ('redaction')
                )
            ),
            CASE WHEN h.last_seq > 0 THEN h.active_at END, h.subject
        FROM compaction_store.threads AS t
        JOIN compaction_store.heads AS h ON h.thread_uid = t.thread_uid
        WHERE t.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
END
$$;
