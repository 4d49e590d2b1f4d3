-- What is laid ready for an import, and the transaction that it is known by, are the coordinator's; the thread is not.
CREATE OR REPLACE FUNCTION compaction_store.begin_import(
    p_thread_uid uuid, p_tenant text, OUT found_pos bigint, OUT found_head bytea
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RAISE EXCEPTION 'no bundle is imported where the tables are spread over a cluster: load its messages instead'
        USING ERRCODE = 'CS015';
END
$$;
