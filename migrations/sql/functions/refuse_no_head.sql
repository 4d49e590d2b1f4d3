-- Raises the error for a thread that has no row in heads: its key leads nowhere, or, where the name leads to it, its rows
-- were changed.
CREATE FUNCTION compaction_store.refuse_no_head(p_thread_uid uuid, p_tenant text, p_thread_id text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF compaction_store.find_thread(p_tenant, p_thread_id) = p_thread_uid THEN
        RAISE EXCEPTION 'the thread has a name and no head: its rows were changed' USING ERRCODE = 'CS020';
    END IF;
    RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
END
$$;
