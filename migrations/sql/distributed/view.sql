-- What the model should see at a pos (NULL: now): the active records and, by index ranges, the messages between them.
-- A record's row has its number, and its body as payload: taking a field out of json fails on text that holds \u0000.
CREATE OR REPLACE FUNCTION compaction_store.view(p_thread_uid uuid, p_tenant text, p_at bigint)
RETURNS TABLE (
    at_pos bigint, seq bigint, end_seq bigint, number bigint, pos bigint, payload text, tokens bigint,
    created_at timestamptz, kind text, callback text, head bytea
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    v_last_pos bigint;
    v_last_seq bigint;
    v_last_number bigint;
    v_head bytea;
    v_numbers bigint[];
    v_starts bigint[];
    v_ends bigint[];
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    SELECT h.last_pos, h.last_seq, h.last_number, h.head INTO v_last_pos, v_last_seq, v_last_number, v_head
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    IF p_at IS NOT NULL THEN
        IF p_at < 1 OR p_at > v_last_pos THEN
            RAISE EXCEPTION 'no pos %', p_at USING ERRCODE = 'CS005', DETAIL = v_last_pos::text;
        END IF;
        IF p_at < v_last_pos THEN
            v_last_seq := compaction_store.seq_at(p_thread_uid, p_at);
            v_head := compaction_store.entry_at(p_thread_uid, p_at, v_last_seq);
        END IF;
        v_last_pos := p_at;
    END IF;
    IF v_last_number > 0 THEN
        SELECT array_agg(a.number), array_agg(a.start_seq), array_agg(a.end_seq)
        INTO v_numbers, v_starts, v_ends
        FROM compaction_store.active(p_thread_uid, v_last_pos, v_last_number) AS a;
    END IF;
    IF v_numbers IS NULL THEN
        RETURN QUERY
            SELECT v_last_pos, m.seq, m.seq, NULL::bigint, m.pos, m.payload::text, m.tokens::bigint,
                m.created_at, NULL::text, NULL::text, CASE WHEN m.seq = 1 THEN v_head END
            FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq <= v_last_seq
            ORDER BY m.seq;
        RETURN;
    END IF;
    -- The i-th gap lies between the end of record i - 1 and the start of record i. OFFSET 0 keeps each lookup one of the
    -- primary key: taken for a join, a long thread among many short ones would be read whole, once for every gap.
    RETURN QUERY
        SELECT v_last_pos, e.*, CASE WHEN e.start_seq = 1 THEN v_head END FROM (
            SELECT c.start_seq, c.end_seq, c.number, c.pos, c.body::text, c.tokens_after, c.created_at, c.kind,
                c.callback
            FROM unnest(v_numbers) AS n (number)
            CROSS JOIN LATERAL (
                SELECT * FROM compaction_store.compactions AS r
                WHERE r.thread_uid = p_thread_uid AND r.number = n.number
                OFFSET 0
            ) AS c
            UNION ALL
            SELECT m.seq, m.seq, NULL::bigint, m.pos, m.payload::text, m.tokens::bigint, m.created_at, NULL::text,
                NULL::text
            FROM unnest(array_prepend(0::bigint, v_ends), array_append(v_starts, v_last_seq + 1)) AS gap (low, high)
            CROSS JOIN LATERAL (
                SELECT * FROM compaction_store.messages AS g
                WHERE g.thread_uid = p_thread_uid AND g.seq > gap.low AND g.seq < gap.high
                OFFSET 0
            ) AS m
        ) AS e
        ORDER BY 2;
END
$$;
