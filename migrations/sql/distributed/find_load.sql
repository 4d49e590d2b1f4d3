-- COPY needs the thread's lock and its rows in one session, which a coordinator is not.
CREATE OR REPLACE FUNCTION compaction_store.find_load(p_thread_uid uuid, p_tenant text, p_key text)
RETURNS TABLE (found_seq bigint, found_size integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    RAISE EXCEPTION 'nothing is loaded where the tables are spread over a cluster: append instead'
        USING ERRCODE = 'CS015';
END
$$;
