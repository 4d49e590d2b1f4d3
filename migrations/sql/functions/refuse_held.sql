-- Raises an error if a hold or a retention forbids erasing from a thread. The newest of holds and releases decides, and the
-- newest retention. The caller holds the head's lock.
CREATE FUNCTION compaction_store.refuse_held(p_thread_uid uuid, p_last_pos bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_newest record;
BEGIN
    SELECT e.pos, e.kind INTO v_newest FROM compaction_store.events AS e
    WHERE e.thread_uid = p_thread_uid AND e.pos <= p_last_pos
        AND e.kind IN ('hold', 'release') ORDER BY e.pos DESC LIMIT 1;
    IF v_newest.kind = 'hold' THEN
        RAISE EXCEPTION 'the thread is held since pos %', v_newest.pos
            USING ERRCODE = 'CS013', DETAIL = v_newest.pos::text;
    END IF;
    SELECT e.pos, compaction_store.retained_until(e.body::text) AS until INTO v_newest
    FROM compaction_store.events AS e
    WHERE e.thread_uid = p_thread_uid AND e.pos <= p_last_pos AND e.kind = 'retention' ORDER BY e.pos DESC LIMIT 1;
    IF v_newest.until > clock_timestamp() THEN
        RAISE EXCEPTION 'the thread is retained until % by pos %',
            to_char(v_newest.until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), v_newest.pos
            USING ERRCODE = 'CS013', DETAIL = v_newest.pos::text;
    END IF;
END
$$;
