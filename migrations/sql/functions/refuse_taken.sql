-- Raises where a thread cannot be made because its key is there, and not in this tenant with a head: another tenant has
-- it, as a stub that was imported with a key that is not its own, or the thread was changed by hand.
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
