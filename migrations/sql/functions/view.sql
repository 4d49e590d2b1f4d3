-- Returns what the model should see at a pos: the active records, and the messages between them. p_at NULL means now; a
-- hidden thread is then not found. The first row has the thread_uid and, as head, the entry of the chain at that pos.
-- The row of a record has its number and, as payload, its whole body, because json cannot extract fields from a text
-- with \u0000.
CREATE FUNCTION compaction_store.view(p_thread_uid uuid, p_tenant text, p_thread_id text, p_at bigint)
RETURNS TABLE (
    at_pos bigint, seq bigint, end_seq bigint, number bigint, pos bigint, payload text, tokens bigint,
    created_at timestamptz, kind text, callback text, head bytea, thread_uid uuid
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
-- Use a generic plan: it fits all values, and planning takes as long as running the query.
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_last_pos bigint;
    v_last_seq bigint;
    v_last_number bigint;
    v_hidden_seq bigint;
    v_head bytea;
    v_next bigint := 1;
    v_number bigint;
    v_start bigint;
    v_end bigint;
    v_inside integer;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    SELECT h.last_pos, h.last_seq, h.last_number, h.hidden_seq, h.head
    INTO v_last_pos, v_last_seq, v_last_number, v_hidden_seq, v_head
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    IF p_at IS NULL AND v_hidden_seq = v_last_seq THEN
        -- An entry of an unknown kind may have made the thread visible again.
        PERFORM compaction_store.refuse_unknown(p_thread_uid, v_last_pos, v_last_number);
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    IF p_at IS NOT NULL THEN
        IF p_at < 1 OR p_at > v_last_pos THEN
            RAISE EXCEPTION 'no pos %: the last pos is %', p_at, v_last_pos USING ERRCODE = 'CS005', DETAIL = v_last_pos::text;
        END IF;
        IF p_at < v_last_pos THEN
            v_last_seq := compaction_store.seq_at(p_thread_uid, p_at);
            -- A fork has no message at pos 1, because it begins with an event.
            IF v_last_seq < 1 THEN
                RAISE EXCEPTION 'no message up to pos %', p_at USING ERRCODE = 'CS005', DETAIL = v_last_pos::text;
            END IF;
            v_head := compaction_store.entry_at(p_thread_uid, p_at, v_last_seq);
        END IF;
        v_last_pos := p_at;
    END IF;
    -- A thread without records and events has no entries of unknown kinds.
    IF v_last_pos > v_last_seq THEN
        PERFORM compaction_store.refuse_unknown(p_thread_uid, v_last_pos, v_last_number);
    END IF;
    -- Outer records come before those inside them, which are skipped, as in the function active. There is one query for
    -- each record and each gap. With few active records, this is faster than one query that sorts all rows; with
    -- hundreds, it takes up to twice as long.
    WHILE v_last_number > 0 LOOP
        v_inside := 0;
        FOR v_number, v_start, v_end IN
            SELECT f.number, f.start_seq, f.end_seq
            FROM compaction_store.in_force(p_thread_uid, v_last_pos, v_last_number, v_next) AS f
            ORDER BY f.start_seq, f.end_seq DESC, f.number DESC
        LOOP
            IF v_end < v_next THEN
                v_inside := v_inside + 1;
                EXIT WHEN v_inside = 10;
                CONTINUE;
            END IF;
            v_inside := 0;
            IF v_start > v_next THEN
                RETURN QUERY
                    SELECT v_last_pos, m.seq, m.seq, NULL::bigint, m.pos, m.payload::text, m.tokens::bigint,
                        m.created_at, NULL::text, NULL::text, CASE WHEN m.seq = 1 THEN v_head END,
                        CASE WHEN m.seq = 1 THEN p_thread_uid END
                    FROM compaction_store.messages AS m
                    WHERE m.thread_uid = p_thread_uid AND m.seq >= v_next AND m.seq < v_start
                    ORDER BY m.seq;
            END IF;
            RETURN QUERY
                SELECT v_last_pos, c.start_seq, c.end_seq, c.number, c.pos, c.body::text, c.tokens_after,
                    c.created_at, c.kind, c.callback, CASE WHEN c.start_seq = 1 THEN v_head END,
                    CASE WHEN c.start_seq = 1 THEN p_thread_uid END
                FROM compaction_store.compactions AS c
                WHERE c.thread_uid = p_thread_uid AND c.number = v_number;
            v_next := v_end + 1;
        END LOOP;
        EXIT WHEN v_inside < 10;
    END LOOP;
    RETURN QUERY
        SELECT v_last_pos, m.seq, m.seq, NULL::bigint, m.pos, m.payload::text, m.tokens::bigint,
            m.created_at, NULL::text, NULL::text, CASE WHEN m.seq = 1 THEN v_head END,
            CASE WHEN m.seq = 1 THEN p_thread_uid END
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq >= v_next AND m.seq <= v_last_seq
        ORDER BY m.seq;
END
$$;
