-- Returns a page of the entries of one kind of a thread, in the order of seq, number or pos, with everything that a
-- verifier needs to recompute their hashes. Bodies and meta are included only if p_content is set.
CREATE FUNCTION compaction_store.entries(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_kind text, p_from bigint, p_content boolean, p_limit integer
) RETURNS TABLE (
    pos bigint, ordinal bigint, row_tenant text, at_microseconds bigint, redacted_pos bigint, salt bytea,
    commitment bytea, entry bytea, body text, meta text, meta_commitment bytea, header_columns text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Force the index: without table statistics, the planner would read and sort a whole thread to return a few rows.
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    IF p_kind = 'message' THEN
        RETURN QUERY
            SELECT m.pos, m.seq, m.tenant, compaction_store.microseconds(m.created_at), m.redacted_pos, m.salt,
                m.commitment, m.entry,
                CASE WHEN p_content THEN m.payload::text END, CASE WHEN p_content THEN m.meta::text END,
                m.meta_commitment,
                json_build_array(m.role, m.tokens, m.counter, m.key, m.call_size, m.receipt, m.actor, m.login)::text
            FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq >= p_from
            ORDER BY m.seq LIMIT p_limit;
    ELSIF p_kind = 'compaction' THEN
        RETURN QUERY
            SELECT c.pos, c.number, c.tenant, compaction_store.microseconds(c.created_at), c.redacted_pos, c.salt, c.commitment, c.entry,
                CASE WHEN p_content THEN c.body::text END, NULL::text, NULL::bytea,
                json_build_array(
                    c.kind, c.outcome, c.start_seq, c.end_seq, c.tokens_before, c.tokens_after, c.source_count,
                    encode(c.source_before, 'hex'), encode(c.source_end, 'hex'), c.inputs, c.run_id, c.callback,
                    c.trigger, c.actor, c.login, c.model, c.counter, c.revokes
                )::text
            FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.number >= p_from
            ORDER BY c.number LIMIT p_limit;
    ELSE
        RETURN QUERY
            SELECT e.pos, 0::bigint, e.tenant, compaction_store.microseconds(e.created_at), NULL::bigint, e.salt, e.commitment, e.entry,
                CASE WHEN p_content THEN e.body::text END, NULL::text, NULL::bytea,
                json_build_array(e.kind, e.critical, e.actor, e.login)::text
            FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos >= p_from
            ORDER BY e.pos LIMIT p_limit;
    END IF;
END
$$;
