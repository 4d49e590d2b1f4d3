-- Raises the error for a thread that has no row in heads. Either there is no such thread, or, if its name exists, its
-- rows were changed by hand.
CREATE FUNCTION compaction_store.refuse_no_head(p_thread_uid uuid, p_tenant text, p_thread_id text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM compaction_store.threads AS t
    WHERE t.thread_uid = p_thread_uid AND t.tenant = p_tenant AND t.thread_id = p_thread_id;
    IF FOUND THEN
        RAISE EXCEPTION 'the thread has a name and no head: its rows were changed' USING ERRCODE = 'CS020';
    END IF;
    RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
END
$$;
