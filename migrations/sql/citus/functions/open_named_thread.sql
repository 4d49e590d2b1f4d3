-- Makes the thread for which the same transaction got a new thread_uid from name_thread. A thread_uid contains the time
-- of the thread's creation. This function exists only on a cluster, where the client makes the thread on another node
-- than its name, so this function must check the thread_uid that the client sends; on a single server, open_thread
-- makes the thread_uid.
CREATE OR REPLACE FUNCTION compaction_store.open_named_thread(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_subject text DEFAULT NULL::text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_born_at timestamptz := '1970-01-01 00:00:00+00'::timestamptz + interval '1 millisecond'
        * ('x' || substring(encode(uuid_send(p_thread_uid), 'hex') FOR 12))::bit(48)::bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF (
        compaction_store.born_in(p_thread_uid, v_born_at)
        AND v_born_at BETWEEN clock_timestamp() - interval '1 day' AND clock_timestamp() + interval '1 day'
    ) IS NOT TRUE THEN
        RAISE EXCEPTION 'thread_uid must be a UUID of version 7 with a time within a day of this clock'
            USING ERRCODE = 'CS010';
    END IF;
    PERFORM compaction_store.open_thread(p_tenant, p_thread_id, p_thread_uid, v_born_at, true, p_subject);
END
$$;
