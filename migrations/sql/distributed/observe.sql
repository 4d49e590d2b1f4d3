-- COPY needs the thread's lock and its rows in one session, which a coordinator is not.
CREATE OR REPLACE FUNCTION compaction_store.observe(p_thread_uid uuid, p_tenant text, p_run_id uuid, p_records text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
BEGIN
    RAISE EXCEPTION 'nothing is loaded where the tables are spread over a cluster: append instead'
        USING ERRCODE = 'CS015';
END
$$;
