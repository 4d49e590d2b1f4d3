-- Returns what the call with this salt erased, or NULLs if there was no such call.
CREATE FUNCTION compaction_store.redacted_by(
    p_thread_uid uuid, p_last_pos bigint, p_salt bytea,
    OUT event_pos bigint, OUT seqs int8multirange, OUT numbers int8multirange
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT e.pos INTO event_pos FROM compaction_store.events AS e
    WHERE e.thread_uid = p_thread_uid AND e.pos <= p_last_pos AND e.kind = 'redaction' AND e.salt = p_salt;
    IF FOUND THEN
        SELECT coalesce(range_agg(int8range(m.seq, m.seq, '[]')), '{}') INTO seqs
        FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid AND m.redacted_pos = event_pos;
        SELECT coalesce(range_agg(int8range(c.number, c.number, '[]')), '{}') INTO numbers
        FROM compaction_store.compactions AS c WHERE c.thread_uid = p_thread_uid AND c.redacted_pos = event_pos;
    END IF;
END
$$;
