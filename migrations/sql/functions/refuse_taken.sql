-- Raises an error if a thread cannot be imported because another thread has its name, or another tenant has its
-- thread_uid.
CREATE FUNCTION compaction_store.refuse_taken(p_tenant text, p_thread_id text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- On a cluster, claim_name has already checked the name.
    IF compaction_store.is_distributed() OR compaction_store.find_thread(p_tenant, p_thread_id) IS NULL THEN
        RAISE EXCEPTION 'the thread_uid is taken: another tenant has it, or its rows were changed'
            USING ERRCODE = 'CS020';
    END IF;
    RAISE EXCEPTION 'the name is taken by another thread' USING ERRCODE = 'CS022';
END
$$;
