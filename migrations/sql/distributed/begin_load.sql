-- COPY needs the thread's lock and its rows in one session, which a coordinator is not.
CREATE OR REPLACE FUNCTION compaction_store.begin_load(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_key text, p_expected_seq bigint,
    OUT last_seq bigint, OUT last_pos bigint, OUT chain_head bytea, OUT at_microseconds bigint,
    OUT found_seq bigint, OUT found_size integer
)
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
