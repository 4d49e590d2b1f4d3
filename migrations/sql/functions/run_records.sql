-- Returns the records that one run wrote, in order. p_last_number is the last number in the head. Leaves out a record
-- that says that the run was abandoned: another run wrote it, and a late commit must not mistake it for its own.
CREATE FUNCTION compaction_store.run_records(p_thread_uid uuid, p_run_id uuid, p_last_number bigint)
RETURNS TABLE (
    number bigint, pos bigint, created_at timestamptz, kind text, outcome text, start_seq bigint, end_seq bigint,
    tokens_before bigint, tokens_after bigint, source_count bigint, inputs bigint[], callback text, trigger text,
    actor text, login text, model text, counter text, revokes bigint, redacted_pos bigint, body text, entry bytea,
    thread_uid uuid
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY
        SELECT c.number, c.pos, c.created_at, c.kind, c.outcome, c.start_seq, c.end_seq, c.tokens_before,
            c.tokens_after, c.source_count, c.inputs, c.callback, c.trigger, c.actor, c.login, c.model, c.counter,
            c.revokes, c.redacted_pos, c.body::text, c.entry, c.thread_uid
        FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.run_id = p_run_id AND c.number <= p_last_number
            AND c.trigger IS DISTINCT FROM 'abandoned'
        ORDER BY c.number;
END
$$;
