-- Raises an error if a thread cannot be made because its key exists, but not in this tenant with a head. Then it belongs to
-- another tenant, as an imported stub with a key that is not its own, or rows were changed by hand.
CREATE FUNCTION compaction_store.refuse_taken(p_thread_uid uuid) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid) THEN
        RAISE EXCEPTION 'the key of the thread is taken: another tenant has it, or its rows were changed'
            USING ERRCODE = 'CS020';
    END IF;
END
$$;
