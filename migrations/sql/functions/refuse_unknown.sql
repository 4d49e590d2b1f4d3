-- Raises an error if a thread has, up to a pos, a critical entry of an unknown kind. A newer release wrote such an
-- entry, and only that release knows the view after it. Two partial indexes contain exactly these entries. "+ 0" keeps
-- the planner from using the primary key.
CREATE FUNCTION compaction_store.refuse_unknown(p_thread_uid uuid, p_at bigint, p_last_number bigint) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_unknown record;
BEGIN
    SELECT u.pos, u.kind INTO v_unknown
    FROM (
        SELECT c.pos, c.kind FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.pos <= p_at AND c.number + 0 <= p_last_number AND c.outcome = 'applied'
            AND c.kind NOT IN ('summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption')
        UNION ALL
        SELECT e.pos, e.kind FROM compaction_store.events AS e
        WHERE e.thread_uid = p_thread_uid AND e.pos <= p_at AND e.critical AND e.kind NOT IN ('redaction')
    ) AS u
    ORDER BY u.pos LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the entry at pos % is of kind %, which this release does not know', v_unknown.pos, v_unknown.kind
            USING ERRCODE = 'CS021', DETAIL = v_unknown.pos::text;
    END IF;
END
$$;
