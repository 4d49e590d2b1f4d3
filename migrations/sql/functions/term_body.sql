-- Returns the body of a retention, after comparing it with the thread's term in force. A locked term can only be made
-- longer, and stays locked. Another term may be shortened; the body then has the pos of the retention that it shortens.
CREATE FUNCTION compaction_store.term_body(p_head compaction_store.heads, p_body text) RETURNS text
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_until timestamptz := compaction_store.retained_until(p_body);
    v_term record;
    v_locked boolean := compaction_store.is_locked(p_body);
BEGIN
    IF EXISTS (
        SELECT FROM json_object_keys(compaction_store.parsable(p_body)::json) AS k (name)
        WHERE k.name = 'shortens' OR k.name = 'locked' AND NOT v_locked
    ) THEN
        RAISE EXCEPTION 'the body must not have field names that a retention uses itself' USING ERRCODE = 'CS019';
    END IF;
    SELECT e.pos, compaction_store.retained_until(e.body::text) AS until, compaction_store.is_locked(e.body::text) AS locked
    INTO v_term FROM compaction_store.events AS e
    WHERE e.thread_uid = p_head.thread_uid AND e.pos <= p_head.last_pos AND e.kind = 'retention'
    ORDER BY e.pos DESC LIMIT 1;
    IF v_term.until > clock_timestamp() THEN
        IF v_term.locked AND v_until < v_term.until THEN
            RAISE EXCEPTION 'the term is locked until % and must not be shortened: pos %',
                to_char(v_term.until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), v_term.pos
                USING ERRCODE = 'CS013', DETAIL = v_term.pos::text;
        END IF;
        IF v_term.locked AND NOT v_locked THEN
            p_body := format('%s,"locked":%s%s', left(p_body, 38), true::text, substring(p_body FROM 39));
        ELSIF v_until < v_term.until THEN
            p_body := format(
                '%s,"shortens":%s%s', left(p_body, CASE WHEN v_locked THEN 52 ELSE 38 END), v_term.pos,
                substring(p_body FROM CASE WHEN v_locked THEN 53 ELSE 39 END)
            );
        END IF;
    END IF;
    RETURN p_body;
END
$$;
